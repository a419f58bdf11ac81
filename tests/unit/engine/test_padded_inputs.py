"""Inputs padded to buckets: where each real row goes, and that padding touches nothing but the dump page."""

from dataclasses import replace

import numpy as np
import pytest

from sporelm.backends.backend_registry import open_backend
from sporelm.backends.protocol import InputBuckets
from sporelm.checkpoints import config_from_hf
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.model_output import PreviousTokens
from sporelm.engine.padded_inputs import PaddedInputs, round_up
from sporelm.engine.runner import InputArrays, sampled_inputs, spread_rows
from sporelm.engine.step import UNKNOWN, ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker
from sporelm.evals.meta_device.check_buckets import make_weights
from sporelm.evals.meta_device.tiny_configs import CONFIGS
from sporelm.models import build
from sporelm.ops.paged_attention import PAGE

LIMITS = EngineConfig(
    8 * PAGE, 8 * PAGE, vocab=100, token_budget=96, max_batch=6, num_pages=50, num_states=9, state_interval=PAGE
)
BUCKETS = InputBuckets(8, (0, 1, 2, 4, 8), (0, 1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4, 8, 16, 96))
DUMP, DUMP_STATE = LIMITS.num_pages, LIMITS.num_states


def draw_step(seed: int) -> Step:
    """Return a step of a few sequences, each with one token or a chunk, and with pages of its own."""
    random = np.random.default_rng(seed)
    pages, sequences = random.permutation(50), []
    for number in range(int(random.integers(1, 7))):
        count = 1 if random.random() < 0.5 else int(random.integers(2, 16))
        position = int(random.integers(0, 8 * PAGE - count))
        table = tuple(pages[number * 8 : number * 8 + -(-(position + count) // PAGE)].tolist())
        ids = random.integers(0, 100, count).tolist()
        outputs = int(random.integers(0, count + 1))
        sequences.append(ScheduledSequence(number + 1, ids, position, table, outputs, state_slot=8 - number))
    return Step(sequences, [])


@pytest.mark.parametrize("seed", range(40))
def test_real_rows_are_those_of_exact_inputs(seed: int) -> None:
    step = draw_step(seed)
    exact, extents = InputArrays(LIMITS).fill(step)
    padded, shapes, first_rows = PaddedInputs(LIMITS, BUCKETS).fill(step)
    rows = np.concatenate(
        [np.arange(first, first + len(each.tokens)) for each, first in zip(step.sequences, first_rows, strict=True)]
    )
    assert len(set(rows.tolist())) == extents["tokens"]
    for name in ("tokens", "positions", "slots"):
        assert padded[name][rows].tolist() == exact[name].tolist(), name
    others = np.setdiff1d(np.arange(shapes["tokens"]), rows)
    assert (padded["slots"][others] // PAGE == DUMP).all()
    assert (padded["tokens"][others] == 0).all()
    num_outputs = sum(each.num_outputs for each in step.sequences)
    assert padded["rows"][:num_outputs].tolist() == rows[exact["rows"][:num_outputs]].tolist()


@pytest.mark.parametrize("seed", range(40))
def test_each_block_is_a_sequence_that_ends_with_its_last_real_row(seed: int) -> None:
    step = draw_step(seed)
    padded, shapes, first_rows = PaddedInputs(LIMITS, BUCKETS).fill(step)
    num_blocks = (shapes["tokens"] - shapes["sequences"]) // (BUCKETS.row_block - 1)
    decodes = shapes["sequences"] - num_blocks
    assert shapes["tokens"] == decodes + num_blocks * BUCKETS.row_block
    counts = np.diff(padded["starts"])
    used = set()
    for each, first in zip(step.sequences, first_rows, strict=True):
        for start in range(0, len(each.tokens), BUCKETS.row_block):
            is_single = len(each.tokens) == 1
            number = first if is_single else decodes + (first - decodes + start) // BUCKETS.row_block
            used.add(number)
            count = min(BUCKETS.row_block, len(each.tokens) - start)
            assert counts[number] == count
            length = padded["lengths"][number]
            assert length == each.position + start + count
            needed = -(-int(length) // PAGE)
            assert padded["pages"][number, :needed].tolist() == list(each.page_table[:needed])
            assert padded["states"][number] == each.state_slot
    rest = np.setdiff1d(np.arange(shapes["sequences"]), sorted(used))
    assert (padded["lengths"][rest] == 1).all()
    assert (padded["pages"][rest] == DUMP).all()
    assert (padded["states"][rest] == DUMP_STATE).all()


def test_shapes_are_few() -> None:
    inputs = PaddedInputs(LIMITS, BUCKETS)
    shapes = {tuple(inputs.fill(draw_step(seed))[1].items()) for seed in range(300)}
    for found in map(dict, shapes):
        assert found["rows"] in inputs.outputs
        assert found["columns"] in inputs.columns
        assert found["tokens"] <= inputs.max_tokens
    assert round_up((0, 1, 2, 4), 3) == 4


def test_padding_has_the_shapes_of_steps_and_uses_only_the_dump_page() -> None:
    inputs = PaddedInputs(LIMITS, BUCKETS)
    steps = list(inputs.iterate_warmup_inputs())
    sizes = [(extents["tokens"], extents["columns"]) for _, extents in steps]
    assert sizes == sorted(sizes, reverse=True)
    assert {extents["tokens"] for _, extents in steps if extents["tokens"] == extents["sequences"]} >= {1, 2, 4, 6}
    for arrays, extents in steps:
        assert (arrays["slots"] // PAGE == DUMP).all()
        assert (arrays["pages"] == DUMP).all()
        assert (arrays["states"] == DUMP_STATE).all()
        assert extents["columns"] in inputs.columns
        assert arrays["rows"].max() < extents["tokens"]
    step = Step([ScheduledSequence(number, [1], 2 * PAGE, (0, 1, 2), 1, state_slot=0) for number in range(3)], [])
    arrays, extents, _ = inputs.fill(step)
    prepared = [({name: array.shape for name, array in padding.items()}, each) for padding, each in steps]
    assert ({name: array.shape for name, array in arrays.items()}, extents) in prepared


def test_unknown_tokens_and_adapters_go_to_the_rows_of_their_sequences() -> None:
    step = Step(
        [
            ScheduledSequence(7, [1, 2, 3], 0, (4,), 1),
            ScheduledSequence(8, [UNKNOWN], 5, (5,), 1),
            ScheduledSequence(9, [6], 70, (6, 7), 1),
        ],
        [],
    )
    sampled = PreviousTokens(np.array([11, 12], np.int32), {8: 1})
    _, shapes, first_rows = PaddedInputs(LIMITS, BUCKETS).fill(step)
    sources = sampled_inputs(step, sampled, first_rows, shapes["tokens"])["sources"]
    assert np.flatnonzero(sources >= 0).tolist() == [first_rows[1]]
    assert sources[first_rows[1]] == 1
    assert sampled_inputs(step, sampled, None, 5)["sources"].tolist() == [-1, -1, -1, 1, -1]
    spread = spread_rows(np.array([0, 0, 0, 1, 2], np.int32), step, first_rows, shapes["tokens"])
    assert spread[first_rows[0] : first_rows[0] + 3].tolist() == [0, 0, 0]
    assert (spread[first_rows[1]], spread[first_rows[2]]) == (1, 2)
    assert (spread >= 0).sum() == 5


@pytest.mark.parametrize("buckets", [None, BUCKETS])
def test_a_worker_allocates_the_dump_page_and_the_dump_state(buckets: InputBuckets | None) -> None:
    backend = open_backend("reference")
    backend.traits = replace(backend.traits, input_buckets=buckets)
    model = build(config_from_hf(dict(CONFIGS["gated linear recurrence"]), "config.json"))
    worker = Worker(LoadedModel(model, make_weights(model, backend, "F32")), backend, limits=LIMITS)
    shapes = [each.shape[0] for cache in worker.runner.caches if isinstance(cache, tuple) for each in cache]
    assert {*shapes} == {DUMP_STATE + (buckets is not None)}
    assert {each.shape[0] for each in worker.runner.paged} == {DUMP + (buckets is not None)}
    worker.close()
    backend.close()
