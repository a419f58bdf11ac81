"""Adapters as users meet them: by name, per request, while others are answered."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_folders import write_model
from lora_files import merged, random_pairs, write_gguf_adapter, write_peft
from sporelm import LLM, AsyncLLM, LoraAdapter, SamplingParams
from sporelm.api import lora_adapters
from sporelm.errors import ModelNotFound, RequestError
from tiny_models import WIDE

PROMPT = [1, 9, 17, 33, 5, 99, 42] * 10  # more than a page
PAIRS = {name: random_pairs(WIDE, 2 + seed, seed=seed) for seed, name in enumerate(("red", "green", "blue"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", WIDE)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {name: write_peft(place / name, pairs, 4.0) for name, pairs in PAIRS.items()}


@pytest.fixture
def llm(folder: Path, paths: dict[str, Path]) -> Iterator[LLM]:
    with LLM(folder, threads=1, adapters=[paths["red"], LoraAdapter(paths["green"], "leaf", 0.5)]) as model:
        yield model


def greedy(adapter: str | None = None, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, "adapter": adapter} | more)


def test_requests_choose_their_adapter(llm: LLM, paths: dict[str, Path]) -> None:
    assert llm.adapters.names == ["red", "leaf"]
    assert llm.load_adapter(paths["blue"], scale=2) == "blue"
    names = [None, "red", "leaf", "blue"]
    alone = {name: llm.generate([PROMPT], greedy(name, salt=f"{name} alone"))[0].token_ids for name in names}
    assert len({tuple(ids) for ids in alone.values()}) == 4
    order = ["red", None, "blue", "leaf", "red", None]
    together = llm.generate([PROMPT] * 6, [greedy(name, logprobs=0) for name in order])
    assert [answer.token_ids for answer in together] == [alone[name] for name in order]


def test_logits_are_those_of_merged_weights(llm: LLM, tmp_path: Path) -> None:
    whole = write_model(tmp_path / "merged", WIDE, change=merged(WIDE, PAIRS["green"], 0.5 * 4 / 3))
    with LLM(whole, threads=1) as other:
        np.testing.assert_allclose(llm.logits(PROMPT, "leaf"), other.logits(PROMPT), atol=1e-4, rtol=0)
    assert np.abs(llm.logits(PROMPT) - llm.logits(PROMPT, "leaf")).max() > 0.5


def test_embeddings_are_those_of_merged_weights(llm: LLM, tmp_path: Path) -> None:
    whole = write_model(tmp_path / "merged", WIDE, change=merged(WIDE, PAIRS["red"], 4 / 2))
    with LLM(whole, threads=1) as other:
        found = llm.embed([PROMPT, PROMPT[:9]], adapter="red")
        np.testing.assert_allclose(found, other.embed([PROMPT, PROMPT[:9]]), atol=1e-5, rtol=0)
    assert np.abs(llm.embed(PROMPT) - found[0]).max() > 0.01
    with pytest.raises(RequestError, match="no adapter is called"):
        llm.embed(PROMPT, adapter="sepia")


def test_a_gguf_adapter_answers_as_the_folder(llm: LLM, tmp_path: Path) -> None:
    llm.load_adapter(write_gguf_adapter(tmp_path / "red2.gguf", WIDE, PAIRS["red"], 4.0))
    assert np.array_equal(llm.logits(PROMPT, "red"), llm.logits(PROMPT, "red2"))
    first, second = (llm.generate([PROMPT], greedy(name))[0] for name in ("red", "red2"))
    assert first.token_ids == second.token_ids
    assert second.cached_tokens == 64, "the same numbers under another name: what they computed is found"


def test_what_an_adapter_computed_is_found_with_it_alone(llm: LLM) -> None:
    seen = [llm.generate([PROMPT], greedy(name))[0] for name in ("red", "leaf", None, "red", "leaf", None)]
    assert [answer.cached_tokens for answer in seen] == [0, 0, 0, 64, 64, 64]
    assert [answer.cache_miss for answer in seen[:3]] == ["first request with this adapter"] * 2 + ["first seen"]


def test_adapters_are_loaded_and_unloaded_while_requests_run(llm: LLM, paths: dict[str, Path]) -> None:
    expected = llm.generate([PROMPT], greedy("red", max_tokens=30))[0].token_ids
    plain = llm.generate([PROMPT], greedy(max_tokens=30))[0].token_ids
    streams = [llm.stream(PROMPT, greedy(name, max_tokens=30)) for name in ("red", None)]
    firsts = [next(stream) for stream in streams]
    llm.load_adapter(paths["blue"])
    with pytest.raises(RequestError, match="requests still use the adapter 'red'"):
        llm.unload_adapter("red")
    llm.unload_adapter("leaf")
    said = [list(first.token_ids) for first in firsts]
    for ids, stream in zip(said, streams, strict=True):
        for piece in stream:
            ids += piece.token_ids
    assert said == [expected, plain]
    llm.unload_adapter("red")
    llm.unload_adapter("blue")
    assert llm.adapters.names == []
    assert llm.generate([PROMPT], greedy(max_tokens=30))[0].token_ids == plain
    with pytest.raises(RequestError, match="no adapter is called 'red': none is loaded"):
        llm.generate([PROMPT], greedy("red"))
    llm.load_adapter(paths["red"])
    again = llm.generate([PROMPT], greedy("red", max_tokens=30))[0]
    assert again.token_ids == expected
    assert again.cached_tokens == 64, "it is known by its numbers, not by when it was loaded"


def test_wrong_names_and_too_many(
    llm: LLM, folder: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="no adapter is called 'blue': loaded are red, leaf"):
        llm.generate([PROMPT], greedy("blue"))
    with pytest.raises(RequestError, match="no adapter is called 'blue'"):
        llm.unload_adapter("blue")
    with pytest.raises(RequestError, match="'red' is loaded: unload it first"):
        llm.load_adapter(paths["blue"], "red")
    for bad in ({"name": ""}, {"name": "two\nlines"}, {"scale": float("nan")}, {"scale": 1e9}, {"scale": "1"}):
        with pytest.raises(RequestError, match=r"^(name|scale) is"):
            llm.load_adapter(paths["blue"], **bad)
    with pytest.raises(ModelNotFound):
        llm.load_adapter(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="adapter is 3: it must be the name"):
        SamplingParams(adapter=3)  # type: ignore[arg-type]
    monkeypatch.setattr(lora_adapters, "MAX_ADAPTERS", 2)
    with pytest.raises(RequestError, match="2 adapters are loaded, which is the maximum"):
        llm.load_adapter(paths["blue"])
    assert llm.adapters.names == ["red", "leaf"]
    with pytest.raises(RequestError, match="must be a path or a LoraAdapter"):
        LLM(folder, threads=1, adapters=[3])  # type: ignore[list-item]
    llm.close()
    with pytest.raises(RequestError, match="closed"):
        llm.load_adapter(paths["blue"])


def test_eager_is_planned_and_guesses_change_nothing(llm: LLM, folder: Path, paths: dict[str, Path]) -> None:
    expected = [llm.generate([PROMPT], greedy(name, max_tokens=40))[0].token_ids for name in ("red", None)]
    for options in ({"eager": True}, {"speculate": "ngram"}):
        with LLM(folder, threads=1, adapters=[paths["red"]], **options) as other:  # type: ignore[arg-type]
            found = other.generate([PROMPT] * 2, [greedy(name, max_tokens=40) for name in ("red", None)])
            assert [answer.token_ids for answer in found] == expected


def test_several_answers_and_forks_have_the_adapter(llm: LLM) -> None:
    expected = llm.generate([PROMPT], greedy("red", salt="alone"))[0].token_ids
    (answer,) = llm.generate([PROMPT], greedy("red", n=3))
    assert [each.token_ids for each in (answer, *answer.alternatives)] == [expected] * 3


@pytest.fixture
def talker(folder: Path, tmp_path: Path) -> Path:
    """A model with a token for every byte, and a chat template."""
    made = write_model(tmp_path / "talker", replace(WIDE, config=WIDE.config | {"vocab_size": 300}))
    path = made / "tokenizer_config.json"
    text = path.read_text(encoding="utf-8")
    template = "{% for message in messages %}{{ message['content'] + '.' }}{% endfor %}"
    path.write_text(text[:-1] + f', "chat_template": "{template}"' + "}", encoding="utf-8")
    return made


LONG = "one two three four five six seven eight nine ten eleven twelve " * 2


def test_conversations_remember_with_which_adapter_they_were_held(
    talker: Path, paths: dict[str, Path], tmp_path: Path
) -> None:
    def last(pieces: Any) -> Any:
        return [piece.completion for piece in pieces][-1]

    with LLM(talker, threads=1, adapters=[paths["red"], paths["blue"]]) as llm:
        talk = llm.conversation()
        held = last(talk.ask(LONG, greedy("red")))
        fork, other = talk.fork(), talk.fork()
        again = last(fork.ask("and-so-on", greedy("red")))
        assert again.cached_tokens >= len(held.prompt_token_ids)
        assert last(other.ask("and-so-on", greedy("blue"))).cached_tokens == 0
        for each in (fork, other):
            each.close()
        talk.sleep(tmp_path / "red.session")
        woken = llm.wake(tmp_path / "red.session")
        found = last(woken.ask("and-so-on", greedy("red")))
        assert found.token_ids == again.token_ids
        assert found.cached_tokens >= again.cached_tokens > 0
        woken.close()
        llm.unload_adapter("red")
        with pytest.raises(RequestError, match=r"an adapter that is not loaded, known by [0-9a-f]{12}: load the"):
            llm.wake(tmp_path / "red.session")
        llm.load_adapter(paths["red"], "rouge")
        woken = llm.wake(tmp_path / "red.session")
        assert last(woken.ask("and-so-on", greedy("rouge"))).cached_tokens >= again.cached_tokens
        woken.close()


def test_an_event_loop_loads_and_unloads(folder: Path, paths: dict[str, Path]) -> None:
    async def run() -> None:
        async with AsyncLLM(folder, threads=1) as model:
            plain = await model.generate(PROMPT, greedy())
            endless = greedy(max_tokens=10**7, ignore_eos=True, roll=True)
            long = model.stream(PROMPT, endless)
            said = list((await anext(long)).token_ids)
            assert await model.load_adapter(paths["red"]) == "red"
            red, again = await asyncio.gather(model.generate(PROMPT, greedy("red")), model.generate(PROMPT, greedy()))
            assert again.token_ids == plain.token_ids != red.token_ids
            while len(said) < 12:
                said += (await anext(long)).token_ids
            assert said[:12] == plain.token_ids
            await long.aclose()
            stream = model.stream(PROMPT, replace(endless, adapter="red"))
            await anext(stream)
            with pytest.raises(RequestError, match="still use"):
                await model.unload_adapter("red")
            await stream.aclose()
            await model.run_between_steps(lambda: None)
            await model.unload_adapter("red")
            with pytest.raises(RequestError, match="none is loaded"):
                await model.generate(PROMPT, greedy("red"))

    asyncio.run(run())
