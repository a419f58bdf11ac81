"""Conversations that others push out sleep in a folder; what woke says what it would have said."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from available import BACKENDS, open_available
from sporelm import LLM, Conversation, SamplingParams
from sporelm.errors import ModelFileError, RequestError
from system.processes import Spore
from system.test_generation_chat import GREEDY, say
from unit.engine.test_session_io import rewrite

LONG = "Once upon a time there was a little girl named Lily. " * 22  # some 170 tokens


@pytest.fixture(params=BACKENDS)
def llm(request: pytest.FixtureRequest, talker: Path, tmp_path: Path) -> Iterator[LLM]:
    open_available(request.param).close()
    with LLM(talker, backend=request.param, threads=1, max_batch=1, session_dir=tmp_path / "asleep") as made:
        yield made
        made.engine.check_integrity()
    assert not list((tmp_path / "asleep").iterdir())


@pytest.fixture(scope="module")
def quiet(story: Path) -> Iterator[LLM]:
    with LLM(story, backend="reference") as made:
        yield made


def others(llm: LLM) -> None:
    """Start enough conversations to use every page."""
    for number in range(llm.engine.limits.num_pages * 64 // 400 + 1):
        say(llm.conversation(), f"{number} {LONG} {LONG}", SamplingParams(max_tokens=1))


def open_conversation(llm: LLM) -> tuple[Conversation, int]:
    conversation = llm.conversation()
    first = say(conversation, LONG)
    return conversation, len(first.prompt_token_ids) + len(first.token_ids) - 1


def test_a_conversation_that_gave_way_goes_on_without_recomputing(llm: LLM, tmp_path: Path) -> None:
    conversation, length = open_conversation(llm)
    child = conversation.fork()
    assert not conversation.is_asleep
    others(llm)
    assert conversation.is_asleep
    assert child.is_asleep
    woken = say(conversation, "Then")
    assert (woken.cached_tokens, woken.cache_miss) == (length, None)
    assert not conversation.is_asleep
    fresh = llm.generate([woken.prompt_token_ids], SamplingParams(**{**vars(GREEDY), "salt": "none has this"}))[0]
    assert (fresh.cached_tokens, fresh.token_ids) == (0, woken.token_ids)
    assert child.sleep(tmp_path / "child.session") > 10_000
    if os.name == "posix":
        assert not (tmp_path / "child.session").stat().st_mode & 0o077
    other = llm.wake(tmp_path / "child.session")
    assert say(other, "Then").token_ids == woken.token_ids
    for each in (conversation, other):
        each.close()


def test_another_type_of_keys_and_values_is_told(talker: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    with LLM(talker, backend="reference", kv="f16") as llm:
        conversation, _ = open_conversation(llm)
        conversation.sleep(path)
    with LLM(talker, backend="reference", kv="f32") as llm:
        with pytest.raises(RequestError, match=r"in f16\. Open the model with the option kv set to f16"):
            llm.wake(path)
        with pytest.raises(ModelFileError, match="is a folder"):
            llm.wake(tmp_path)


SAID = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "notes",
    [
        {"messages": [SAID]},
        {"messages": {"role": "user"}, "told": []},
        {"messages": ["Hi"], "told": []},
        {"messages": [{"role": "user"}], "told": []},
        {"messages": [{"role": "user", "content": ["Hi"]}], "told": []},
        {"messages": [{"role": "user", "content": "\ud800"}], "told": []},
        {"messages": [SAID], "told": "abc"},
        {"messages": [SAID], "told": [[1, "Hi"]]},
        {"messages": [SAID], "told": [[2, "Hi", [1]]]},
        {"messages": [SAID], "told": [[-1, "Hi", [1]]]},
        {"messages": [SAID], "told": [[1, "Hi", [1]], [0, "", []]]},
        {"messages": [SAID], "told": [[True, "Hi", [1]]]},
        {"messages": [SAID], "told": [[1, "\udfff", [1]]]},
        {"messages": [SAID], "told": [[1, "Hi", [1 << 40]]]},
        {"messages": [SAID], "told": [[1, "Hi", [-1]]]},
        {"messages": [SAID], "told": [[1, "Hi", "12"]]},
        {"messages": [SAID], "told": [[1, "Hi", [1.0]]]},
        {"messages": None, "told": None},
    ],
    ids=str,
)
def test_notes_of_an_invalid_conversation_are_refused(quiet: LLM, tmp_path: Path, notes: dict[str, Any]) -> None:
    conversation = quiet.conversation()
    conversation.sleep(tmp_path / "forged")
    rewrite(tmp_path / "forged", honest=False, notes=json.dumps(notes))
    before = len(quiet.engine.kv_cache.sequences)
    with pytest.raises(ModelFileError, match="is not a saved conversation"):
        quiet.wake(tmp_path / "forged")
    assert len(quiet.engine.kv_cache.sequences) == before


def test_chat_saves_loads_and_refuses(spore: Spore, talker: Path, tmp_path: Path) -> None:
    lines = ["Once upon a time", "/save my talk", "/load my talk", "/list", "/save README", "/load nothing"]
    (tmp_path / "README").write_text("mine")
    done = spore("chat", talker, "--temp", 0, "-n", 5, "--session-dir", "asleep", stdin="\n".join(lines))
    assert done.returncode == 1
    assert re.search(r"wrote my talk, [1-9][0-9.]* kB", done.stdout)
    assert "conversation 2 (from my talk, 1 turn)" in done.stdout
    assert "* 2  1 turn  Once upon a time" in done.stdout
    assert "README: exists and is not a session file" in done.stderr
    assert "nothing does not exist" in done.stderr
    assert (tmp_path / "README").read_text() == "mine"
    assert not list((tmp_path / "asleep").iterdir())


def test_half_a_character_is_refused_when_it_is_to_be_written(quiet: LLM, tmp_path: Path) -> None:
    conversation = quiet.conversation("\ud800")
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        conversation.save(tmp_path / "talk")
    assert not list(tmp_path.iterdir())
    conversation.close()
