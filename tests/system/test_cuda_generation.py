"""Whole models on the CUDA back-end give the CPU's greedy tokens: on a GPU, or under Triton's interpreter."""

from pathlib import Path

import pytest

from available import open_available
from sporelm import LLM, SamplingParams

GREEDY = SamplingParams(max_tokens=3, temperature=0.0)


def assert_same_tokens(model: Path, dtype: str) -> None:
    open_available("cuda").close()
    options = {"max_context": 256, "max_batch": 2}
    found = []
    for backend in ({"backend": "cpu"}, {"backend": "cuda", "dtype": dtype}):
        with LLM(model, **options, **backend) as llm:
            found.append(llm.generate(["Once upon a time"], GREEDY)[0].token_ids)
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["f32", pytest.param("bf16", marks=pytest.mark.all)])
def test_the_story_model(story: Path, dtype: str) -> None:
    assert_same_tokens(story, dtype)


@pytest.mark.all
def test_smollm2(smollm2: Path) -> None:
    assert_same_tokens(smollm2, "f32")
