"""Adapters in the engine: with sharing, forks, eviction and sessions no sequence reads the KV of another adapter."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.engine import Engine, EngineConfig, ModelOutput, Request, Sampling, Step
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.kv.prefix_cache import root_hash
from sporelm.errors import RequestError
from sporelm.ops.paged_attention import PAGE
from unit.engine.hashed import VOCAB, HashedRunner, cells_of, scores_after

ADAPTERS = {1: "red", 2: "green"}
SHIFT = 64  # more than there are tokens: a cell tells the adapter that computed it
STEM = np.random.default_rng(1).integers(0, VOCAB, 4 * PAGE).tolist()


class AdaptedRunner(HashedRunner):
    """A model that says other things with each adapter."""

    used: Any = None

    def run(self, step: Step) -> ModelOutput:
        sequences = [
            scheduled._replace(tokens=[token + SHIFT * scheduled.adapter_id for token in scheduled.tokens])
            for scheduled in step.sequences
        ]
        return super().run(step._replace(sequences=sequences))

    def set_lora_runtime(self, adapted: Any) -> None:
        self.used = adapted


@lru_cache
def expected_output(prompt: tuple[int, ...], adapter: int, count: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        cells = cells_of([token + SHIFT * adapter for token in tokens])
        tokens.append(int(scores_after(cells).argmax()))
    return tokens[len(prompt) :]


def engine_of(folder: Path | None = None) -> Engine:
    limits = EngineConfig(5 * PAGE, 5 * PAGE, VOCAB, 96, 4, 12)
    runner = AdaptedRunner(limits)
    store = OffloadStore(folder, runner, lambda: "model") if folder else None
    engine = Engine(runner, limits, offload_store=store)
    engine.use_adapters(ADAPTERS, None)
    return engine


def ask(engine: Engine, prompt: Sequence[int], adapter: int, count: int = 4, **options: Any) -> Request:
    return engine.add(Request(prompt, max_tokens=count, sampling=Sampling(), adapter_id=adapter, **options))


def assert_alone(request: Request) -> None:
    expected = expected_output(tuple(request.prompt), request.adapter_id, request.max_tokens)
    assert request.generated == expected, f"adapter {request.adapter_id}, prompt of {request.num_prompt}"


@pytest.mark.parametrize("sleeping", [False, True])
def test_each_request_gets_the_same_output_as_alone(tmp_path: Path, sleeping: bool) -> None:
    """Shared prefixes, child requests, sequences that change their adapter, forks; in a pool that is too small."""
    random, engine = np.random.default_rng(3), engine_of(tmp_path / "asleep" if sleeping else None)
    sequences = [engine.sequence() for _ in range(3)]
    waiting: list[Request] = []
    for turn in range(150):
        cut, adapter = int(random.integers(1, len(STEM))), int(random.integers(0, 3))
        prompt = [*STEM[:cut], int(random.integers(0, VOCAB))]
        sequence = sequences[turn % 3] if random.random() < 0.5 else None
        if sequence is not None and engine.scheduler.uses(sequence):
            engine.run(waiting)
        request = ask(engine, prompt, adapter, int(random.integers(1, 9)), sequence=sequence)
        waiting.append(request)
        if random.random() < 0.3:
            waiting.append(ask(engine, prompt, int(random.integers(0, 3)), parent=request))
        if random.random() < 0.3:
            engine.run(waiting)
            for each in waiting:
                assert_alone(each)
            waiting.clear()
            engine.drop(sequences[2])
            sequences[2] = engine.fork(sequences[0])
        engine.check_integrity()
    engine.run(waiting)
    for each in waiting:
        assert_alone(each)
    if engine.kv_cache.offload_store is not None:
        engine.kv_cache.offload_store.close()


def test_a_sequence_is_computed_again_for_another_adapter(tmp_path: Path) -> None:
    engine = engine_of()
    sequence = engine.sequence()
    held = []
    for adapter in (1, 1, 2, 0, 1):
        request = ask(engine, STEM[:100], adapter, sequence=sequence)
        engine.run([request])
        assert_alone(request)
        held.append(request.cached_tokens)
    assert held == [0, 99, 0, 0, PAGE], "at last a page that the first ones left"
    engine.save_session(sequence, tmp_path / "asleep", "model", {})
    for known, woken in (({1: "red"}, True), ({7: "red"}, True), ({1: "blue"}, False), ({}, False)):
        engine.use_adapters(known, None)
        if not woken:
            with pytest.raises(RequestError, match="was made with an adapter that is not loaded, known by red"):
                engine.load_session(tmp_path / "asleep", "model")
            continue
        child, _ = engine.load_session(tmp_path / "asleep", "model")
        assert child.page_hashes.root == root_hash("", "red") != root_hash("")
        assert child.tokens == sequence.tokens
        engine.drop(child)


def test_an_adapter_does_not_go_while_it_is_used() -> None:
    engine = engine_of()
    request = ask(engine, STEM[:30], 2)
    with pytest.raises(RequestError, match="still use this adapter"):
        engine.use_adapters({1: "red"}, object())  # type: ignore[arg-type]
    assert engine.runner.used is None  # type: ignore[attr-defined]
    engine.run([request])
    assert_alone(request)
    engine.use_adapters({1: "red"}, None)
    with pytest.raises(RequestError, match="adapter 2 is not loaded"):
        ask(engine, STEM[:30], 2)
    with pytest.raises(RequestError, match="adapter 2 is not loaded"):
        next(engine.logits(STEM[:30], print, 2))


def test_scores_of_a_text_have_their_adapter() -> None:
    engine = engine_of()
    for adapter in (0, 1, 2, 1):
        chunks: list[np.ndarray] = []
        for _ in engine.logits(STEM[:20], chunks.append, adapter):
            engine.step()
        assert np.array_equal(chunks[0][-1], scores_after(cells_of([token + SHIFT * adapter for token in STEM[:20]])))
