"""Models of every kind on several ranks: recurrent states, experts, pictures, embeddings, drafts and their sessions."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drawn_families import FIRST, PICTURE, DrawnFamily, draw_pixels
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm import LLM, Completion, SamplingParams
from sporelm.api import Conversation
from sporelm.engine.ranks.worker_group import WorkerGroup

TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}<s>"
VOCAB = 320
CONTEXT = 512
WORDS = "a dog it is so no " * 5  # more than a page
PROMPTS = [WORDS, "no dog", "it is a"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=24, temperature=0.8, top_k=20, seed=3, ignore_eos=True)
WIDE_DRAWN = SamplingParams(max_tokens=24, temperature=0.8, seed=4, ignore_eos=True)  # reads all logits
PARAMS = [GREEDY, DRAWN, WIDE_DRAWN]
TP2, PP2, EP2 = {"tp": 2}, {"pp": 2}, {"tp": 2, "ep": True}
PROCESSES = {"rank_executor": "processes"}
RECURRENT = ("mamba2", "qwen3next", "rwkv7", "jamba")
EXPERTS = ("mixtral", "qwen3moe", "deepseek2")
SEEING = ("qwen2vl", "gemma3", "qwen3vl")
SAMPLE = ("qwen3next", "mixtral", "qwen2vl")  # one of each kind in the default run


class Folders:
    """Folders of tiny models, written once, and their only rank, loaded once."""

    def __init__(self, parent: Path, cleanup: ExitStack) -> None:
        self._parent, self._cleanup = parent, cleanup
        self._paths: dict[str, Path] = {}
        self._single: dict[str, LLM] = {}

    def path(self, name: str) -> Path:
        """Return the folder of a model."""
        if name not in self._paths:
            write = write_seeing if name in SEEING else write_text
            self._paths[name] = write(self._parent / name, name)
        return self._paths[name]

    def single(self, name: str) -> LLM:
        """Return a model on one rank."""
        if name not in self._single:
            self._single[name] = self._cleanup.enter_context(open_model(self.path(name), threads=1))
        return self._single[name]

    def several(self, name: str, **options: Any) -> LLM:
        """Open a model on several ranks, threads unless they are named."""
        return open_model(self.path(name), **{"rank_executor": "threads", "threads": 2, **options})


def open_model(path: Path, **options: Any) -> LLM:
    return LLM(path, **{"max_context": CONTEXT, "max_batch": 4, "kv": "f32", **options})


def write_text(folder: Path, name: str) -> Path:
    """Write a case of tests/families with a tokenizer, a chat template and a longer context."""
    case = next(case for case in CASES if case.name == name)
    longer = {"max_position_embeddings": CONTEXT, "vocab_size": VOCAB}
    write_case(folder, replace(case, config=case.config | longer))
    write_tokenizer(folder, tokenizer_json(VOCAB), chat_template=TEMPLATE)
    return folder


def write_seeing(folder: Path, name: str) -> Path:
    family: DrawnFamily = FIRST[name]
    return family.write(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    with ExitStack() as cleanup:
        yield Folders(tmp_path_factory.mktemp("models"), cleanup)


def cases(names: tuple[str, ...], *divisions: dict[str, Any]) -> list[Any]:
    """Return (name, division): the sample on threads in the default run, all others with --all."""
    found = []
    for name in names:
        for division in (*divisions, divisions[0] | PROCESSES):
            is_sample = name in SAMPLE and "rank_executor" not in division
            label = "-".join([name, *(f"{key}{value}" for key, value in division.items())])
            found.append(pytest.param(name, division, id=label, marks=() if is_sample else pytest.mark.all))
    return found


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [each.token_ids for each in completions]


def assert_equal_models(several: LLM, single: LLM, prompts: list[Any]) -> None:
    """Check texts, logits and embeddings."""
    assert tokens(several.generate(prompts, PARAMS)) == tokens(single.generate(prompts, PARAMS))
    ids = single.prompt_ids(WORDS)
    expected = single.logits(ids)
    assert np.abs(several.logits(ids) - expected).max() <= 1e-5 * np.ptp(expected)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    vectors = single.embed(texts)
    np.testing.assert_allclose(several.embed(texts), vectors, rtol=0, atol=1e-5)
    again = several.generate(prompts[:1], GREEDY)[0]
    assert again.cached_tokens >= 64
    assert again.token_ids == single.generate(prompts[:1], GREEDY)[0].token_ids
    several.engine.check_integrity()


@pytest.mark.parametrize(("name", "division"), cases(RECURRENT, TP2, PP2, {"tp": 2, "pp": 2}))
def test_recurrent_models(folders: Folders, name: str, division: dict[str, Any]) -> None:
    with folders.several(name, **division) as several:
        assert_equal_models(several, folders.single(name), PROMPTS)


@pytest.mark.parametrize(("name", "division"), cases(EXPERTS, EP2, PP2, {"tp": 2, "ep": True, "tp_shares": [2, 1]}))
def test_experts(folders: Folders, name: str, division: dict[str, Any]) -> None:
    with folders.several(name, **division) as several:
        assert_equal_models(several, folders.single(name), PROMPTS)


@pytest.mark.parametrize(("name", "division"), cases(SEEING, TP2, PP2))
def test_pictures(folders: Folders, name: str, division: dict[str, Any]) -> None:
    single = folders.single(name)
    with folders.several(name, **division) as several:
        pictures = [prompt_with_pictures(name, llm) for llm in (single, several)]
        assert_equal_models(several, single, [*PROMPTS[:2], pictures[1]][::-1])
        expected = single.logits(pictures[0])
        assert np.abs(several.logits(pictures[1]) - expected).max() <= 1e-5 * np.ptp(expected)


def prompt_with_pictures(name: str, llm: LLM) -> list[int]:
    text = f"Look: {PICTURE} and {PICTURE} What differs? " + "Say it in a few words, please. " * 2
    pictures = [draw_pixels(70, 41, 0), draw_pixels(16, 90, 1)]
    return llm.prompt_with_images(text.replace(PICTURE, FIRST[name].picture), pictures)


def prompts_of(name: str, llm: LLM) -> list[Any]:
    return [*PROMPTS[:2], prompt_with_pictures(name, llm) if name in SEEING else PROMPTS[2]]


@pytest.mark.parametrize("name", SAMPLE)
def test_short_steps(folders: Folders, name: str) -> None:
    """Prompts take several steps. Some have no output, and their micro-batches neither."""
    single = folders.single(name)
    with folders.several(name, pp=2, token_budget=24) as several:
        assert tokens(several.generate(prompts_of(name, several), PARAMS)) == tokens(
            single.generate(prompts_of(name, single), PARAMS)
        )
        several.engine.check_integrity()


@pytest.mark.parametrize("name", SAMPLE)
def test_restarted_ranks(folders: Folders, name: str) -> None:
    with folders.several(name, tp=2) as several:
        before = several.generate(prompts_of(name, several), PARAMS)
        group = several.loaded_engine.worker
        assert isinstance(group, WorkerGroup)
        group.restart()
        several.engine.scheduler.recompute_all()
        after = several.generate(prompts_of(name, several), PARAMS)
        assert after[0].cached_tokens == 0
        assert tokens(after) == tokens(before)
        several.engine.check_integrity()


@pytest.mark.parametrize("division", [TP2, PP2], ids=str)
def test_logprobs(folders: Folders, division: dict[str, Any]) -> None:
    params = replace(GREEDY, logprobs=3)
    with folders.several("mixtral", **division) as several:
        found = several.generate(PROMPTS, params)
    for one, other in zip(found, folders.single("mixtral").generate(PROMPTS, params), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs is not None
        assert other.logprobs is not None
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


@pytest.fixture
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which every step takes as long as any other and drafting no time: so it goes on."""
    ticks = count()
    monkeypatch.setattr("sporelm.engine.engine.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr("sporelm.engine.speculative.speculation.perf_counter", lambda: 0.0)


@pytest.mark.usefixtures("even_clock")
@pytest.mark.parametrize(
    ("name", "division"),
    [
        ("story", TP2),
        ("story", PP2),
        ("qwen3next", TP2),
        pytest.param("story", TP2 | PROCESSES, marks=pytest.mark.all),
        pytest.param("story", {"tp": 2, "pp": 2}, marks=pytest.mark.all),
        pytest.param("qwen3next", PP2, marks=pytest.mark.all),
        pytest.param("mixtral", EP2, marks=pytest.mark.all),
    ],
    ids=str,
)
@pytest.mark.parametrize("drafts", ["ngram", "draft"])
def test_drafts(folders: Folders, story: Path, name: str, division: dict[str, Any], drafts: str) -> None:
    if name == "story":
        path, prompts = story, ["Once upon a time", "Tom has a red ball. Tom has a red ball. Tom has a red"]
    else:
        path, prompts = folders.path(name), PROMPTS[:2]
    options: dict[str, Any] = {"draft_model": path} if drafts == "draft" else {"speculate": "ngram"}
    num_tokens = 40 if name == "story" else 200  # random weights repeat themselves late
    params = [replace(each, max_tokens=num_tokens) for each in (GREEDY, DRAWN)]
    with open_model(path, threads=1) as single:
        expected = tokens(single.generate(prompts, params))
    with open_model(path, **{"threads": 2, "rank_executor": "threads", **division, **options}) as several:
        assert tokens(several.generate(prompts, params)) == expected
        speculation = several.engine.speculation
        assert speculation is not None
        assert speculation.num_draft_tokens > 0
        several.engine.check_integrity()


def answer(talk: Conversation, question: str, *pictures: np.ndarray) -> Completion:
    *_, last = talk.ask(question, GREEDY, pictures)
    assert last.completion is not None
    return last.completion


@pytest.mark.parametrize(
    ("name", "saved", "restored"),
    [
        ("qwen3next", TP2, {}),
        ("qwen2vl", TP2, {}),
        *(
            pytest.param(*each, marks=pytest.mark.all)
            for each in (
                ("qwen3next", {}, TP2),
                ("qwen3next", PP2, TP2),
                ("mamba2", TP2, {}),
                ("rwkv7", {"tp": 2, "pp": 2}, {}),
                ("jamba", {}, PP2),
                ("qwen2vl", {}, PP2),
                ("gemma3", TP2, {}),
                ("deepseek2", TP2, {}),
                ("qwen3next", TP2 | PROCESSES, {}),
            )
        ),
    ],
    ids=str,
)
def test_sessions(folders: Folders, tmp_path: Path, name: str, saved: dict[str, Any], restored: dict[str, Any]) -> None:
    with folders.several(name, **saved) as llm:
        talk = llm.conversation()
        first = answer(talk, WORDS, *([draw_pixels(70, 41)] if name in SEEING else []))
        talk.save(tmp_path / "session")
        expected = answer(talk, "And then?")
    with folders.several(name, **restored) as llm:
        found = answer(llm.wake(tmp_path / "session"), "And then?")
        assert found.cached_tokens == len(first.prompt_token_ids) + len(first.token_ids) - 1
        assert found.token_ids == expected.token_ids
        llm.engine.check_integrity()
