"""The story model with its context extended: what it allows, what it refuses, and prompts of many chunks."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import BACKENDS, open_available
from sporelm import LLM, SamplingParams
from sporelm.errors import ContextOverflow, RequestError

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512}
DYNAMIC = {"type": "dynamic", "factor": 4.0}


SLOW = [pytest.param(each, marks=pytest.mark.all) if each == "reference" else each for each in BACKENDS]


@pytest.fixture(params=SLOW)
def name(request: pytest.FixtureRequest) -> str:
    """Each back-end that runs here."""
    open_available(request.param).close()
    return str(request.param)


def extended(story: Path, folder: Path, scaling: dict[str, Any]) -> Path:
    """The story model's folder with a rope scaling; its own context is 512."""
    folder.mkdir()
    for source in story.iterdir():
        shutil.copyfile(source, folder / source.name)
    config = json.loads((story / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling}), encoding="utf-8")
    return folder


def ids(count: int) -> list[int]:
    return np.random.RandomState(3).randint(3, 2048, count).tolist()


@pytest.mark.parametrize("scaling", [pytest.param(YARN, marks=pytest.mark.all), DYNAMIC], ids=["yarn", "dynamic"])
def test_chunks_do_not_matter(name: str, scaling: dict[str, Any], story: Path, tmp_path: Path) -> None:
    """Prompts beyond the original context, alone in large chunks and together in small ones."""
    model, prompt = extended(story, tmp_path / "model", scaling), ids(540)
    prompts = [prompt, prompt[:520]]
    with LLM(model, backend=name, max_context=1024) as llm:
        alone = [llm.generate(each, GREEDY)[0].token_ids for each in prompts]
    with LLM(model, backend=name, max_context=1024, token_budget=99) as llm:
        together = [completion.token_ids for completion in llm.generate(prompts, GREEDY)]
    assert alone == together
    assert alone[0] != alone[1]


def test_the_context_is_the_extended_one(story: Path, tmp_path: Path) -> None:
    model = extended(story, tmp_path / "model", YARN)
    with pytest.raises(RequestError, match="the option max_context is 20481: this model allows 1 to 20480"):
        LLM(model, backend="reference", max_context=20481)
    with LLM(model, backend="reference") as llm:
        assert llm.max_context == 8192, "more only if asked for"
        with pytest.raises(ContextOverflow, match=r"raise the option max_context \(the model allows 20480\)"):
            llm.generate([ids(8193)])


def test_dynamic_scaling_begins_beyond_the_original(story: Path, tmp_path: Path) -> None:
    """LoadedEngine with the original context it is the model as it was; opened with more, other frequencies."""
    model, prompt = extended(story, tmp_path / "model", DYNAMIC), ids(40)
    with LLM(story, backend="reference") as llm:
        plain = llm.logits(prompt)
    for context, same in ((512, True), (513, False)):
        with LLM(model, backend="reference", max_context=context) as llm:
            assert np.array_equal(llm.logits(prompt), plain) == same


@pytest.mark.all
def test_twenty_thousand_tokens(story: Path, tmp_path: Path) -> None:
    open_available("cpu").close()
    model, prompt, found = extended(story, tmp_path / "model", YARN), ids(20_000), []
    for budget in (None, 333):
        with LLM(model, backend="cpu", max_context=20_480, token_budget=budget) as llm:
            found += [completion.token_ids for completion in llm.generate([prompt], GREEDY)]
    assert found[0] == found[1]
