"""The slash commands of the chat, over a model that only counts."""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sporelm.api import SamplingParams
from sporelm.cli.chat_sessions import ARGUMENTS, ChatExit, Sessions
from sporelm.cli.sampling_options import LENGTH_OPTIONS, PENALTY_OPTIONS, SAMPLER_OPTIONS
from sporelm.errors import RequestError


@dataclass
class FakeConversation:
    messages: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    is_asleep: bool = False

    def fork(self) -> "FakeConversation":
        return FakeConversation(list(self.messages))

    def close(self) -> None:
        self.closed = True

    def save(self, path: Path) -> int:
        path.write_text(repr(self.messages))
        return 1_500_000


class FakeModel:
    def conversation(self, system: str | None = None) -> FakeConversation:
        return FakeConversation([{"role": "system", "content": system}] if system else [])

    def wake(self, path: Path) -> FakeConversation:
        return FakeConversation(ast.literal_eval(path.read_text()))


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(FakeModel(), SamplingParams(), system="Be brief.")


def say(sessions: Sessions, text: str) -> None:
    sessions.current.messages.append({"role": "user", "content": text})


def test_create_switch_and_list(sessions: Sessions) -> None:
    say(sessions, "first words")
    assert sessions.run_command("/create") == "conversation 2 (new)"
    assert sessions.current.messages == [{"role": "system", "content": "Be brief."}]
    assert sessions.run_command("/list") == "  1  1 turn  first words\n* 2  0 turns  (empty)"
    assert sessions.run_command("/switch 1") == "conversation 1"
    assert sessions.current_id == 1


def test_fork_goes_on_in_the_copy(sessions: Sessions) -> None:
    say(sessions, "shared")
    assert sessions.run_command("/fork") == "conversation 2 (copy of 1)"
    say(sessions, "only in the copy")
    sessions.run_command("/switch 1")
    assert [message["content"] for message in sessions.current.messages] == ["Be brief.", "shared"]
    assert sessions.run_command("/fork 2") == "conversation 3 (copy of 2)"
    assert len(sessions.current.messages) == 3


def test_drop_another_keeps_the_current(sessions: Sessions) -> None:
    sessions.run_command("/create")
    dropped = sessions.conversations[1]
    assert sessions.run_command("/drop 1") == "dropped 1"
    assert dropped.closed
    assert sessions.current_id == 2


def test_drop_the_current_switches_or_creates(sessions: Sessions) -> None:
    sessions.run_command("/create")
    assert sessions.run_command("/drop") == "dropped 2; conversation 1"
    assert sessions.run_command("/drop") == "dropped 1; conversation 3 (new)"
    assert list(sessions.conversations) == [3], "numbers are not used twice"


def test_list_shows_who_sleeps(sessions: Sessions) -> None:
    sessions.current.is_asleep = True
    sessions.run_command("/create")
    assert sessions.run_command("/list") == "  1  0 turns  (empty)  (asleep)\n* 2  0 turns  (empty)"


def test_save_and_load_take_the_rest_of_the_line_as_a_name(sessions: Sessions, tmp_path: Path) -> None:
    say(sessions, "kept words")
    path = tmp_path / "my talk.session"
    assert sessions.run_command(f"/save  {path} ") == f"wrote {path}, 1.5 MB"
    assert sessions.run_command(f"/load {path}") == f"conversation 2 (from {path}, 1 turn)"
    assert "kept words" in sessions.run_command("/list").splitlines()[1]


def test_args_shows_and_sets(sessions: Sessions) -> None:
    shown = sessions.run_command("/args")
    assert [line.split()[0] for line in shown.splitlines()] == list(ARGUMENTS)
    sessions.run_command("/args temperature 0.25")
    sessions.run_command("/args top-k 7")
    sessions.run_command("/args seed 5")
    assert (sessions.params.temperature, sessions.params.top_k, sessions.params.seed) == (0.25, 7, 5)
    sessions.run_command("/args seed none")
    assert sessions.params.seed is None
    sessions.run_command("/args --temp 0.5")
    sessions.run_command("/args dry_multiplier 0.8")
    sessions.run_command("/args roll on")
    params = sessions.params
    assert (params.temperature, params.dry_multiplier, params.roll) == (0.5, 0.8, True)


def test_args_knows_what_options_know() -> None:
    options = {option.removeprefix("--") for option, *_ in (*SAMPLER_OPTIONS, *PENALTY_OPTIONS, *LENGTH_OPTIONS)}
    assert {name for name in ARGUMENTS if name != "temperature"} >= options - {"temp"}
    assert {name.replace("-", "_") for name in ARGUMENTS} <= SamplingParams.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope", "Unknown command: /nope"),
        ("/", "Unknown command: /"),
        ("/switch", "usage: /switch ID"),
        ("/switch 9", "no conversation '9': there are 1"),
        ("/switch " + "9" * 5000, "there are 1"),
        ("/switch one", "no conversation 'one'"),
        ("/drop 0", "no conversation '0'"),
        ("/args colour 1", "/args: unknown parameter 'colour'. There are temperature"),
        ("/args top-k many", "top-k cannot be 'many'"),
        ("/args top-k", "usage: /args"),
        ("/args roll perhaps", "roll cannot be 'perhaps': it must be on or off"),
        ("/args temperature -1", "temperature"),
        ("/args max-tokens 0", "max_tokens"),
        ("/list all", "usage: /list"),
        ("/save", "usage: /save FILE"),
        ("/load ", "usage: /load FILE"),
    ],
)
def test_wrong_commands_change_nothing(sessions: Sessions, line: str, message: str) -> None:
    before = sessions.params
    with pytest.raises(RequestError) as caught:
        sessions.run_command(line)
    assert message in str(caught.value)
    assert sessions.params == before
    assert list(sessions.conversations) == [1]


def test_help_names_every_command_and_exit_leaves(sessions: Sessions) -> None:
    text = sessions.run_command("/help")
    for name in ("list", "create", "fork", "switch", "drop", "save", "load", "args", "help", "exit"):
        assert f"/{name}" in text
    with pytest.raises(ChatExit):
        sessions.run_command("/exit")
