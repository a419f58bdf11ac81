"""Caches of narrow types: how far their answers are from those of f32, and that the equalities hold with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import ORDER_BY_ROWS
from close import assert_close, assert_near_in_nat
from models.test_story import GREEDY, PROMPT
from sporelm import LLM
from sporelm.engine import Engine, KvSequence, Request
from stepping import Stepper
from tiny_models import TINY, Tiny

TEXT = [*PROMPT, *GREEDY] * 3  # 198 positions: several pages, most of them past what the model has seen
# Of the mean over the text; measured: 3.3e-7, 1.5e-5, 4.7e-3 and 1.3e-4.
MAX_NAT = {"f16": 2e-6, "bf16": 5e-5, "fp8": 1.5e-2, "q8_0": 4e-4}

USUAL = ("llama", "mistral-tied-7-heads")


@pytest.mark.parametrize("kind", MAX_NAT)
def test_answers_are_near_those_of_f32(story: Path, backend: Any, load: Callable[..., Stepper], kind: str) -> None:
    found, exact = (load(story, backend, context=256, eager=False, kv=kv).logits(TEXT) for kv in (kind, "f32"))
    left, right = (
        rows.astype(np.float64) - np.logaddexp.reduce(rows.astype(np.float64), axis=1, keepdims=True)
        for rows in (found, exact)
    )
    divergence = float((np.exp(right) * (right - left)).sum(axis=1).mean())
    assert 0 < divergence < MAX_NAT[kind]


@pytest.mark.parametrize(
    ("tiny", "kv"),
    [
        pytest.param(tiny, kv, id=f"{tiny.name}-{kv}", marks=() if tiny.name in names else pytest.mark.all)
        for kv, names in (("q8_0", USUAL), ("bf16", USUAL[:1]), ("fp8", USUAL[1:]))
        for tiny in TINY
    ],
)
def test_chunks_and_batches_change_nothing(
    tiny: Tiny, kv: str, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    """Heads of any size: tiny models' are not multiples of 32."""
    ids, path = tiny.ids(), folder_of(tiny)

    def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
        """Where products sum in another order, some numbers are rounded the other way."""
        if backend.name in ORDER_BY_ROWS:
            assert_near_in_nat(found, expected, 1e-3)
        else:
            assert_close(found, expected, "exact")

    whole = load(path, backend, context=192, eager=False, kv=kv).logits(ids)
    for chunk in (1, 17):
        assert_same(load(path, backend, context=192, eager=False, kv=kv).logits(ids, chunk=chunk), whole)
    batch = load(path, backend, context=192, sequences=2, eager=False, kv=kv)
    batch.step([(0, ids[:40]), (1, ids[:9])])
    together = batch.step([(0, ids[40:41]), (1, ids[9:10])])["logits"]
    assert_same(together, whole[[40, 9]])


def answer(engine: Engine, sequence: KvSequence, ids: list[int]) -> Request:
    request = engine.add(Request(ids, max_tokens=20, sequence=sequence))
    engine.run([request])
    return request


def assert_forked_and_woken(engine: Engine, worker: Any, sequence: KvSequence, known: list[int], file: Path) -> None:
    """A fork writes into a copy of the last page; a file gives back what was written, bit for bit."""
    child = engine.fork(sequence)
    answer(engine, child, [*known[:-1], 7])
    engine.save_session(sequence, file, "m", {})
    woken, _ = engine.load_session(file, "m")
    for there, back in zip(worker.export_pages(sequence.pages), worker.export_pages(woken.pages), strict=True):
        places = slice(0, sequence.length % 64)
        assert np.array_equal(there[:-1], back[:-1])
        assert np.array_equal(there[-1, :, :, places], back[-1, :, :, places])
    ends = [answer(engine, each, known) for each in (sequence, woken)]
    assert ends[0].generated == ends[1].generated
    assert ends[1].cached_tokens == len(known) - 2
    assert answer(engine, engine.sequence(), known).generated == ends[0].generated


@pytest.mark.parametrize("kind", ["f16", "bf16", "fp8", "q8_0"])
def test_pages_sleep_and_are_copied_without_loss(story: Path, tmp_path: Path, kind: str) -> None:
    """A fork writes into a copy of the last page; a file gives back what was written, bit for bit."""
    with LLM(story, kv=kind, max_context=256, threads=1, max_batch=2) as llm:
        engine, worker = llm.loaded_engine.engine, llm.loaded_engine.worker
        sequence = engine.sequence()
        known = [*PROMPT, *GREEDY, *answer(engine, sequence, [*PROMPT, *GREEDY]).generated, 5]
        assert_forked_and_woken(engine, worker, sequence, known, tmp_path / "it.session")
