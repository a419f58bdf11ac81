"""torch as a device that runs by itself: padded inputs, sampling there and overlap give the same text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from drawn_vision import QWEN_PICTURE, write_qwen2vl
from sporelm import LLM, SamplingParams
from sporelm.backends.protocol import InputBuckets
from vision_folders import draw_picture

BUCKETS = InputBuckets(
    row_block=16, decodes=(0, 1, 2, 4, 8), blocks=(0, 1, 2, 4, 8), pages=(1, 2, 4, 8, 16), outputs=(1, 2, 4, 8, 64, 512)
)
PROMPTS = ["Once upon a time", "The cat", "Tom had a red ball. " * 12, "One day", "A girl and her dog went " * 5]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=0.0),
    SamplingParams(max_tokens=30, temperature=0.8, seed=1),
    SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, top_k=0, seed=2),
    SamplingParams(max_tokens=33, temperature=0.9, repetition_penalty=1.2, seed=3),
    SamplingParams(max_tokens=25, temperature=0.0, stop=[" a"]),
]


@pytest.fixture
def async_traits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's CPU be used as an accelerator is."""
    open_available("torch").close()
    from sporelm.backends.torch import torch_backend

    traits = replace(torch_backend.ACCELERATOR_TRAITS, input_buckets=BUCKETS, max_batch=8, token_budget=64)
    monkeypatch.setattr(torch_backend, "HOST_TRAITS", traits)


@pytest.fixture
def texts(story: Path) -> Iterator[Any]:
    open_available("torch").close()
    with LLM(story, backend="torch", max_context=512, dtype="f32") as llm:
        yield [completion.token_ids for completion in llm.generate(PROMPTS, PARAMS)]


def test_text_is_that_of_steps_one_after_the_other(story: Path, texts: Any, async_traits: None) -> None:
    with LLM(story, backend="torch", max_context=512, dtype="f32") as llm:
        engine = llm.engine
        assert engine.overlap is not None
        assert engine.runner.runner.padded_inputs is not None
        found = [completion.token_ids for completion in llm.generate(PROMPTS, PARAMS)]
        alone = [llm.generate([prompt], params)[0].token_ids for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        assert engine.overlap.launched is None
        engine.check_integrity()
    assert found == texts
    assert alone == texts


def test_embeddings_and_scores(story: Path, async_traits: None) -> None:
    import numpy as np

    with LLM(story, backend="torch", max_context=512, dtype="f32") as llm:
        ids = llm.tokenizer.encode(PROMPTS[2])
        logits, vector = llm.logits(ids), llm.embed(PROMPTS[2])
    with LLM(story, backend="cpu", max_context=512) as llm:
        expected, other = llm.logits(ids), llm.embed(PROMPTS[2])
    assert logits.shape == expected.shape
    assert float(np.abs(logits - expected).max()) < 1e-3 * float(np.abs(expected).max())
    assert np.allclose(np.asarray(vector), np.asarray(other), atol=1e-3)


def test_images_in_overlapped_steps(tmp_path: Path, async_traits: None) -> None:
    folder = write_qwen2vl(tmp_path / "qwen2vl")
    pictures = [draw_picture(190, 70, seed=1), draw_picture(40, 150, seed=2)]
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)

    def answers(llm: LLM) -> list[list[int]]:
        prompts = [
            llm.prompt_with_images(f"Look: {QWEN_PICTURE} and {QWEN_PICTURE} What?", pictures),
            llm.prompt_ids("A text without any picture, and a longer one. " * 3),
            llm.prompt_with_images(f"{QWEN_PICTURE} What?", pictures[:1]),
        ]
        return [completion.token_ids for completion in llm.generate(prompts, params)]

    with LLM(folder, max_context=512, kv="f32") as llm:
        expected = answers(llm)
    with LLM(folder, backend="torch", max_context=512, kv="f32", dtype="f32") as llm:
        assert llm.engine.overlap is not None
        assert answers(llm) == expected
        assert answers(llm) == expected, "from the prefix cache"
        llm.engine.check_integrity()
