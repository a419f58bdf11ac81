"""A draft model beside a model: the answers are the same, and its files are checked."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from hf_folders import stored, write_safetensors
from sporelm import LLM, AsyncLLM, Completion, SamplingParams
from sporelm.cli.main import main
from sporelm.errors import RequestError
from sporelm.quant import F32
from tiny_models import LLAMA, Tiny

TEXTS = ["Once upon a time", "The dog ran", "Tom has a red ball. Tom has a red ball. Tom has a red"]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0)
WILD = SamplingParams(max_tokens=40, temperature=1.0, seed=5, logprobs=2)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which every step takes as long as any other and guessing no time: so guesses go on."""
    ticks = count()
    monkeypatch.setattr("sporelm.engine.engine.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr("sporelm.engine.speculative.speculation.perf_counter", lambda: 0.0)


@pytest.fixture(scope="module")
def plain(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def stranger(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of random weights with the story model's tokens."""
    folder = tmp_path_factory.mktemp("stranger")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(story / name, folder / name)
    tiny = Tiny("stranger", LLAMA | {"vocab_size": 2048, "max_position_embeddings": 96}, 3)
    (folder / "config.json").write_text(json.dumps(tiny.config), encoding="utf-8")
    tensors = {name: ("F32", array.shape, stored(array, F32)) for name, array in tiny.weights().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def same(left: list[Completion], right: list[Completion]) -> bool:
    return [(each.token_ids, each.logprobs) for each in left] == [(each.token_ids, each.logprobs) for each in right]


def test_a_model_that_drafts_for_itself_is_right(plain: LLM, story: Path) -> None:
    with LLM(story, threads=1, draft_model=story) as quick:
        speculation = quick.engine.speculation
        assert speculation is not None
        for params in (GREEDY, WILD):
            for texts in (TEXTS[:1], TEXTS):
                assert same(quick.generate(texts, params), plain.generate(texts, params))
        assert speculation.num_draft_tokens > 200
        assert speculation.num_accepted_tokens > 0.97 * speculation.num_draft_tokens
        answer = quick.generate(TEXTS[0], GREEDY)[0]
        assert 0 < answer.accepted <= answer.drafted
        several = SamplingParams(max_tokens=20, temperature=1.0, seed=2, n=3, repetition_penalty=1.3)
        assert same(
            quick.generate(TEXTS[1], several)[0].alternatives, plain.generate(TEXTS[1], several)[0].alternatives
        )


def test_a_model_that_knows_nothing_of_it_changes_no_token(plain: LLM, stranger: Path, story: Path) -> None:
    long = SamplingParams(max_tokens=120, temperature=0.0, ignore_eos=True)  # beyond the draft model's context
    with LLM(story, threads=1, speculate="draft", draft_model=stranger) as quick:
        assert quick.loaded_engine.draft is not None
        assert quick.loaded_engine.draft.limits.max_context == 96
        for params in (GREEDY, WILD, long):
            assert same(quick.generate(TEXTS, params), plain.generate(TEXTS, params))
        assert quick.engine.speculation is not None
        assert quick.engine.speculation.num_draft_tokens > 10
    assert not quick.is_open


def test_what_cannot_draft_is_refused_in_one_line(story: Path, stranger: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="name the draft model too"):
        LLM(story, speculate="draft")
    with pytest.raises(RequestError, match="takes no draft model"):
        LLM(story, speculate="ngram", draft_model=story)
    other = tmp_path / "other"
    shutil.copytree(stranger, other)
    spec = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = spec["model"]["vocab"]
    pieces = sorted(vocab, key=lambda piece: vocab[piece])[-2:]
    vocab[pieces[0]], vocab[pieces[1]] = vocab[pieces[1]], vocab[pieces[0]]
    (other / "tokenizer.json").chmod(0o644)
    (other / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(RequestError, match=r"other.* has other tokens than .*story.*: token \d+ is .*, not "):
        LLM(story, draft_model=other)


def test_memory_counts_the_draft_too(story: Path) -> None:
    with (
        LLM(story, threads=1, kv_memory="8M") as alone,
        LLM(story, threads=1, kv_memory="8M", draft_model=story) as both,
    ):
        assert np.isclose(both.engine.limits.num_pages, alone.engine.limits.num_pages / 2, atol=1)
        assert both.loaded_engine.draft is not None
        assert both.loaded_engine.draft.limits.num_pages == both.engine.limits.num_pages


def test_an_event_loop_gets_the_same_answers(plain: LLM, story: Path) -> None:
    async def together() -> list[Completion]:
        async with AsyncLLM(story, threads=1, max_batch=3, draft_model=story) as llm:
            found = await asyncio.gather(*(llm.generate(text, WILD) for text in TEXTS))
            await llm.run_between_steps(llm.llm.engine.check_integrity)
            return found

    assert same(asyncio.run(asyncio.wait_for(together(), 120)), plain.generate(TEXTS, WILD))


def test_the_command_shows_how_many_guesses_were_right(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        str(story),
        "-p",
        TEXTS[0],
        "-n",
        "30",
        "--temp",
        "0",
        "--threads",
        "1",
        "--draft-model",
        str(story),
    ]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert 0 < printed["accepted"] <= printed["drafted"]
    assert main(words) == 0
    assert f"{printed['accepted']} of {printed['drafted']} drafts accepted" in capsys.readouterr().err
    assert main([*words, "--speculate", "ngram"]) == 2
    assert "takes no --draft-model" in capsys.readouterr().err
    assert main(["run", str(story), "-p", "x", "--speculate", "draft"]) == 2
    assert "name one with --draft-model" in capsys.readouterr().err
