"""Sampling kernels: the tokens that torch's functions draw, under Triton's interpreter; machine code of five cards."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from available import open_available
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling import Sampling
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.sampling.sampler import SamplerState
from sporelm.engine.step import ScheduledSequence, Step
from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter

VOCAB = 83
LARGE_VOCAB = 151_936
KINDS = ("normal", "ties", "flat", "spike", "masked", "unfit")
FILTERS: tuple[dict[str, Any], ...] = (
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.01},
    {"top_k": 1},
    {"top_p": 0.5, "temperature": 100},
)


def random_logits(random: np.random.Generator, kind: str, rows: int) -> np.ndarray:
    x = random.standard_normal((rows, VOCAB), np.float32) * np.float32(3)
    if kind == "ties":
        return np.round(x)
    if kind == "flat":
        return x * np.float32(1e-4)
    if kind == "spike":
        x[np.arange(rows), random.integers(0, VOCAB, rows)] = 90
    if kind == "masked":
        x[random.random(x.shape) < 0.9] = -np.inf
    if kind == "unfit":
        x[0::4, 5], x[1::4, 6], x[2::4] = np.nan, np.inf, -np.inf
    return x


@pytest.fixture(scope="module")
def backends() -> Iterator[tuple[Any, Any]]:
    """Kernels, and torch's functions."""
    require_interpreter()
    opened = open_available("cuda", dtype="f32"), open_available("torch", threads=1)
    yield opened
    for backend in opened:
        backend.close()


def sample(backend: Any, logits: np.ndarray, samplings: list[Sampling]) -> tuple[Any, int]:
    """Return what the device sampler samples for a row each, and how many draws it left to the host."""
    device = DeviceSampler(backend, VOCAB)
    states = {row: SamplerState(each, [5, 6, row % VOCAB], (3,), VOCAB) for row, each in enumerate(samplings)}
    step = Step([ScheduledSequence(row, [0], 9, (0,), 1) for row in states], [])
    best = np.where(np.isnan(logits).any(axis=1), -1, logits.argmax(axis=1)).astype(np.int32)
    output = ModelOutput(backend.copy_in(best), backend.copy_in(logits), backend)
    result = device.launch(output, step, states).finish()
    device.close()
    return result, device.num_uncertain


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.all)])
def test_draws_without_filters_are_those_of_torch(backends: tuple[Any, Any], count: int) -> None:
    """Rows of random temperatures, some with penalties and biases, `count` of each kind."""
    random = np.random.default_rng(count)
    logits = np.concatenate([random_logits(random, kind, count) for kind in KINDS])
    samplings = [
        Sampling(
            temperature=float(random.choice([0, 0.7, 1, random.uniform(0.05, 3), 1e-20])),
            seed=row,
            repetition_penalty=float(random.choice([1, 1.3])),
            logit_bias={int(random.integers(VOCAB)): 2.5},
        )
        for row in range(len(logits))
    ]
    (found, num_uncertain), (expected, torch_uncertain) = (sample(each, logits, samplings) for each in backends)
    assert found == expected
    assert abs(num_uncertain - torch_uncertain) <= 3


@pytest.mark.parametrize("count", [2, pytest.param(36, marks=pytest.mark.all)])
def test_draws_with_filters_are_those_of_torch(backends: tuple[Any, Any], count: int) -> None:
    """Rows with each filter, some with log probabilities, `count` of each kind."""
    random = np.random.default_rng(count)
    logits = np.concatenate([random_logits(random, kind, count) for kind in KINDS])
    samplings = [
        Sampling(**({"temperature": 0.8, "seed": row} | FILTERS[row % len(FILTERS)]), logprobs=row % 2 or None)
        for row in range(len(logits))
    ]
    (found, num_uncertain), (expected, torch_uncertain) = (sample(each, logits, samplings) for each in backends)
    assert found._replace(logprobs={}) == expected._replace(logprobs={})
    assert found.logprobs.keys() == expected.logprobs.keys()
    for request, rows in found.logprobs.items():
        for left, right in zip(rows, expected.logprobs[request], strict=True):
            assert list(left.top) == list(right.top)
            values = [np.array([each.logprob, *each.top.values()]) for each in (left, right)]
            np.testing.assert_allclose(*values, rtol=2e-6, atol=2e-6)
    assert abs(num_uncertain - torch_uncertain) <= 2


def test_draws_from_rows_of_several_chunks(backends: tuple[Any, Any]) -> None:
    import torch

    kernels, plain = (backend.functions["draw_tokens"] for backend in backends)
    random = np.random.default_rng(3)
    logits = torch.from_numpy(random.standard_normal((4, 5001), np.float32) * np.float32(3))
    options = torch.tensor([[0.9, 0, 1, -np.inf, 0], [1, 0, 0.6, -np.inf, 0]] * 2)
    options[:, 4] = torch.from_numpy(random.random(4).astype(np.float32))
    found, expected = (function(logits, options, k=100, whole=True) for function in (kernels, plain))
    assert torch.equal(found, expected)
    assert found[:, 1].any()


@pytest.mark.parametrize("card", CARDS)
def test_draws_use_no_stack(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.sampling import draw_tokens, edit_logits, mask_logits

    logits, options = torch.zeros(4, LARGE_VOCAB), torch.zeros(4, 5)
    places, words = torch.zeros(8, 2, dtype=torch.int32), torch.zeros(2, LARGE_VOCAB // 32, dtype=torch.int32)
    draws = record_launches(lambda: draw_tokens(logits, options, k=256, whole=True))
    [mask] = record_launches(lambda: mask_logits(logits, places[:2, 0], words))
    [edit] = record_launches(lambda: edit_logits(logits, places, torch.zeros(8, 3)))
    by_name = {launch.kernel.__name__: launch for launch in [*draws, mask, edit]}
    for name in ("sum_blocks", "draw_from_row", "draw_from_candidates", "mask_logits", "edit_logits"):
        code = compile_launch(by_name[f"{name}_kernel"], card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 168  # of few programs, one for each row
        assert not code.instructions("ATOM")
        if name in ("sum_blocks", "mask_logits"):
            assert any("128" in each.split()[0] for each in code.instructions("LDG.E")), name
    assert by_name["edit_logits_kernel"].options["enable_fp_fusion"] is False
