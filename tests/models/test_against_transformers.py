"""Logits against transformers' own: kept in goldens/, and live where torch and transformers are there."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from stepping import Stepper
from tiny_models import COURSE_CHAT, ROPES, TINY, Tiny

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_logits_are_those_of_transformers(
    tiny: Tiny, eager: bool, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    logits = load(folder_of(tiny), backend, context=192, eager=eager).logits(tiny.ids())
    assert_close(logits[tiny.compared_positions(), :: tiny.vocab_step], np.load(GOLDENS / f"{tiny.name}.npy"), "logits")


def test_course_chat_model(backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]) -> None:
    """The course's chat model by its configuration, more tokens than its window."""
    tiny = COURSE_CHAT
    runner = load(folder_of(tiny), backend, context=1152, eager=False)
    ids, wanted = tiny.ids(), tiny.compared_positions()
    size = max(backend.step_buckets.values())
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        here = [position for position in wanted if start <= position < start + len(part)]
        logits = runner.step([(0, part)], rows=[position - start for position in here])["logits"]
        expected = np.load(GOLDENS / f"{tiny.name}.npy")[[wanted.index(position) for position in here]]
        assert_close(logits[:, :: tiny.vocab_step], expected, "logits")


def test_window_is_seen_in_the_goldens() -> None:
    """The comparison would miss a window that does nothing unless the windowed and the plain model differ."""
    windowed, plain = (next(tiny for tiny in TINY if tiny.name == name) for name in ("mistral-window-5", "llama"))
    assert windowed.config["sliding_window"] < windowed.tokens
    assert (
        np.abs(np.load(GOLDENS / f"{windowed.name}.npy")[-1] - np.load(GOLDENS / f"{plain.name}.npy")[-1]).max() > 0.1
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tiny", [*TINY, *ROPES, COURSE_CHAT], ids=lambda tiny: tiny.name)
def test_goldens_are_what_transformers_says_now(tiny: Tiny) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[live]' compares live")
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'sporelm[live]' compares live"
    )
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from make_goldens import transformers_logits
    finally:
        sys.path.pop(0)
    live = transformers_logits(tiny)[tiny.compared_positions(), :: tiny.vocab_step]
    assert_close(np.load(GOLDENS / f"{tiny.name}.npy"), live, "logits")
