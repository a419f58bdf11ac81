"""The Python interface beside answers: embeddings from an event loop, refusals, closing."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_folders import write_model
from lora_files import random_pairs, write_peft
from sporelm import LLM, AsyncLLM, Grammar, LoraAdapter, SamplingParams
from sporelm.errors import BackendError, ContextOverflow, ModelFileError, RequestError
from tiny_models import WIDE

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


@pytest.fixture(scope="module")
def llm(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1) as made:
        yield made


@pytest.mark.parametrize("more", [{}, {"pooling": "last", "normalize": False}])
def test_an_event_loop_embeds_between_the_steps_of_others(story: Path, llm: LLM, more: dict[str, Any]) -> None:
    texts = ["Once upon a time", "The dog", llm.prompt_ids("Lily")]

    async def both() -> tuple[Any, Any]:
        async with AsyncLLM(story, threads=1) as made:
            return await asyncio.gather(made.embed(texts, **more), made.generate("Once upon a time", GREEDY))

    found, answer = asyncio.run(both())
    assert found.dtype == np.float32
    assert np.array_equal(found, llm.embed(texts, **more))
    assert answer.token_ids == llm.generate("Once upon a time", GREEDY)[0].token_ids


def test_an_event_loop_hears_why_nothing_is_embedded(story: Path) -> None:
    async def wrong() -> None:
        async with AsyncLLM(story, threads=1) as made:
            for more, reason in (({"pooling": "max"}, "pooling is 'max'"), ({"adapter": "no"}, "no adapter is called")):
                with pytest.raises(RequestError, match=reason):
                    await made.embed("a", **more)
            with pytest.raises(RequestError, match="nothing to embed"):
                await made.embed([])
            with pytest.raises(ContextOverflow):
                await made.embed("a " * 4000)
            assert (await made.embed("a")).shape[0] == 1
        with pytest.raises((RequestError, BackendError)):
            await made.embed("a")

    asyncio.run(wrong())


def test_figures_are_there_after_the_end(story: Path) -> None:
    with LLM(story, threads=1) as made:
        made.generate("Once", GREEDY)
        before = made.metrics.snapshot()
    assert made.metrics.snapshot() == before
    assert before["vllm:generation_tokens_total"]["samples"] == [{"labels": {}, "value": 24}]


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy, copy.copy])
def test_what_is_open_cannot_be_copied_by_its_memory(llm: LLM, take: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^an LLM cannot be pickled or copied: open the model again"):
        take(llm)
    with pytest.raises(TypeError, match=r"^a Conversation cannot be pickled or copied: fork\(\) copies it"):
        take(llm.conversation())


def test_a_prompt_that_is_too_long_may_roll_and_an_embedding_may_not(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match="let the window roll"):
        llm.generate("a " * 4000)
    with pytest.raises(ContextOverflow) as caught:
        llm.embed("a " * 4000)
    assert "roll" not in str(caught.value)


def test_the_limit_of_a_folder_without_the_folder_is_refused(story: Path) -> None:
    with pytest.raises(RequestError, match="session_bytes is given without session_dir"):
        LLM(story, session_bytes=1 << 20)


def test_an_adapter_that_makes_scores_nan_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", WIDE)
    huge = {name: (a * np.float32(1e30), b * np.float32(1e30)) for name, (a, b) in random_pairs(WIDE, 2).items()}
    write_peft(tmp_path / "huge", huge)
    with LLM(model, threads=1, adapters=[LoraAdapter(tmp_path / "huge", "loud")]) as made:
        (answer,) = made.generate([5, 6, 7], SamplingParams(max_tokens=2, adapter="loud"))
        assert answer.finish_reason == "error"
        assert "values of the adapter 'loud' are NaN or too large" in str(answer.error)
        with pytest.raises(BackendError, match="values of the adapter 'loud'"):
            made.embed([5, 6, 7], adapter="loud")
        assert made.generate([5, 6, 7], SamplingParams(max_tokens=2))[0].finish_reason != "error"


def test_a_session_that_cannot_be_written_names_its_place(llm: LLM, tmp_path: Path) -> None:
    talk = llm.conversation()
    with pytest.raises(RequestError) as caught:
        talk.save(tmp_path / "none" / "talk.session")
    assert str(caught.value) == f"{tmp_path / 'none' / 'talk.session'} cannot be written: No such file or directory"


def test_bytes_after_a_session_are_refused(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    llm.conversation("You are brief.").save(path)
    llm.wake(path).close()
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelFileError, match="its tensors end at"):
        llm.wake(path)


def test_true_is_the_schema_of_any_json(llm: LLM) -> None:
    (answer,) = llm.generate("Once", SamplingParams(max_tokens=4, temperature=0.0, grammar=Grammar(json_schema=True)))
    assert answer.finish_reason == "length"
    with pytest.raises(RequestError, match="json_schema is false, which allows nothing"):
        llm.generate("Once", SamplingParams(grammar=Grammar(json_schema=False)))
