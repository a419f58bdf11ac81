"""Two back-ends that share no kernel give one model: the same greedy text in f32, and near distributions quantized."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_near_in_nat
from sporelm import LLM, SamplingParams
from sporelm.evals import compute_kl
from sporelm.quant import Q4_1, Q4_K, Q8_0, QuantFormat
from stepping import Stepper
from tiny_files import write_gguf
from tiny_models import SUPER, TINY, WIDE, Tiny

LIMIT = 0.01  # nat per token
PROMPTS = ["Once upon a time", "The little dog"]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Any, Any]]:
    """Torch and the CPU."""
    backends = open_available("torch", threads=2), open_available("cpu", threads=2)
    yield backends
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_greedy_ids_of_f32_models(
    tiny: Tiny, pair: tuple[Any, Any], folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    runners = [load(folder_of(tiny), backend, context=128, eager=False) for backend in pair]
    first, second = (runner.greedy(tiny.ids()[:20], 40) for runner in runners)
    assert first == second
    for runner in runners:
        runner.close()


@pytest.mark.parametrize(("tiny", "form"), [(WIDE, Q8_0), (WIDE, Q4_1), (SUPER, Q4_K)], ids=str)
def test_quantized_models_are_near(
    tiny: Tiny, form: type[QuantFormat], pair: tuple[Any, Any], tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny, matrices=form)
    runners = [load(path, backend, context=128, eager=False) for backend in pair]
    found, expected = (runner.logits(tiny.ids()) for runner in runners)
    assert_near_in_nat(found, expected, LIMIT)
    for runner in runners:
        runner.close()


def test_the_story_model_tells_the_same_through_the_whole_program(story: Path) -> None:
    open_available("torch").close()
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    told = []
    for backend, eager in (("cpu", False), ("torch", False), ("torch", True)):
        with LLM(story, backend=backend, eager=eager, threads=2, max_context=256) as llm:
            told.append([completion.token_ids for completion in llm.generate(PROMPTS, params)])
    assert told[1] == told[0]
    assert told[2] == told[0]


@pytest.mark.all
def test_smollm2_is_near(smollm2: Path, root: Path) -> None:
    """KL(cpu || torch) on the second halves of windows of 512 tokens of our own documents."""
    open_available("torch").close()
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((root / "docs").glob("*.md")))
    with (
        LLM(smollm2, backend="torch", max_context=512) as found,
        LLM(smollm2, backend="cpu", max_context=512) as expected,
    ):
        measured = compute_kl(found, expected, text, 1024)
    assert measured.kl <= LIMIT
    assert np.isfinite(measured.perplexity)
