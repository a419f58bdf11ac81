"""The conversations of one chat, and the slash commands that make, fork, switch and drop them."""

from collections.abc import Callable, Generator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from sporelm.cli.plain_text import counted, plain
from sporelm.cli.sampling import CHOOSING, ENDING, REPEATING
from sporelm.errors import RequestError, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HELP = """\
/list                the conversations; * marks the current one
/create              begin a new conversation
/fork [ID]           copy a conversation (the current one) and go on in the copy
/switch ID           go on in another conversation
/drop [ID]           forget a conversation (the current one)
/save FILE           write the current conversation to a file, {saved}
/load FILE           go on with a conversation that /save wrote{loaded}
/args [KEY VALUE]    show the sampling values, or set one{unset}
/help                this text
/exit                leave (so does Ctrl-D)
Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-C stops an answer."""

SWITCH = {"on": True, "true": True, "off": False, "false": False}
NONE = "none"  # takes a value back that need not be given
SHORT = {"temp": "temperature"}  # as the options have it

NUMBERS: list[tuple[str, str, Any, Any, str]] = [*CHOOSING, *REPEATING, ("--max-tokens", "N", int, 256, ""), *ENDING]


def name_of(option: str) -> str:
    """What /args calls an option."""
    return option.removeprefix("--")


# What /args calls a value -> how to read it; the field in SamplingParams has underscores for hyphens.
ARGUMENTS: dict[str, Callable[[str], Any]] = {
    **{SHORT.get(name_of(option), name_of(option)): kind for option, _, kind, *_ in NUMBERS},
    "seed": int,
    "ignore-eos": lambda text: SWITCH[text.lower()],
    "roll": lambda text: SWITCH[text.lower()],
}

FILE_COMMANDS = ("save", "load")  # the rest of the line is one name, spaces included


class Leave(Exception):
    """/exit was typed."""


class Thought(NamedTuple):
    """What a model thinks before it answers: shown, and no part of the answer."""

    text: str


class Said(Protocol):
    """What came of an answer; nothing, where a moment passed without. The last one has the whole answer."""

    @property
    def text(self) -> str: ...

    @property
    def completion(self) -> Any: ...


if TYPE_CHECKING:
    Params = TypeVar("Params", bound=DataclassInstance)
    Asked = TypeVar("Asked", bound=DataclassInstance, contravariant=True)
else:
    Params, Asked = TypeVar("Params"), TypeVar("Asked")


class Talk(Protocol[Asked]):
    """A conversation, with a model here (`sporelm.api.Conversation`) or on a server (`cli.remote`).

    `ask` raises before it changes anything; closing what it yields keeps what was answered so far.
    """

    messages: list[dict[str, Any]]

    @property
    def is_asleep(self) -> bool: ...

    def ask(self, text: str, params: Asked, /) -> Generator[Any, None, None]: ...

    def fork(self) -> "Talk[Asked]": ...

    def save(self, path: Path, /) -> int: ...

    def close(self) -> None: ...


class Partner(Protocol[Asked]):
    """Whom the chat talks with: begins conversations, and goes on with those that were saved."""

    def conversation(self, system: str | None = None, /) -> Talk[Asked]: ...

    def wake(self, path: Path, /) -> Talk[Asked]: ...


class Wording(NamedTuple):
    """What is said of the same commands, here and with a server."""

    saved: str = "with all that was computed for it"
    loaded: str = ", without computing it again"
    unset: str = ""
    nothing: str = NONE  # how a value is shown that is not given


class Sessions(Generic[Params]):
    """Numbered conversations with one partner; there is always a current one."""

    def __init__(
        self,
        partner: Partner[Params],
        params: Params,
        system: str | None = None,
        wording: Wording = Wording(),  # noqa: B008 - it cannot be changed
    ) -> None:
        self.partner = partner
        self.params = params
        self.system = system
        self.wording = wording
        self.conversations: dict[int, Talk[Params]] = {}
        self.current_id = 0
        self.last_id = 0
        self.create([])

    @property
    def current(self) -> Talk[Params]:
        return self.conversations[self.current_id]

    def command(self, line: str) -> str:
        """Carry out one slash command; returns what to print. Raises Leave for /exit, RequestError for a wrong one."""
        name, *rest = line[1:].split(maxsplit=1) or [""]
        words = [rest[0].strip()] if rest and name in FILE_COMMANDS else " ".join(rest).split()
        commands = {
            "list": self.show,
            "create": self.create,
            "fork": self.fork,
            "switch": self.switch,
            "drop": self.drop,
            "save": self.save,
            "load": self.load,
            "args": self.arguments,
            "help": self.help,
            "exit": self.exit,
        }
        if name not in commands:
            raise RequestError(f"Unknown command: /{name} (see /help)")
        return commands[name](words)

    def show(self, words: list[str]) -> str:
        expect(words, "/list", 0)
        lines = []
        for number, conversation in self.conversations.items():
            said = questions(conversation)
            first = plain(" ".join(str(said[0]["content"]).split())[:60]) if said else "(empty)"
            mark = "*" if number == self.current_id else " "
            asleep = "  (asleep)" if conversation.is_asleep else ""
            lines.append(f"{mark} {number}  {counted(len(said), 'turn')}  {first}{asleep}")
        return "\n".join(lines)

    def create(self, words: list[str]) -> str:
        expect(words, "/create", 0)
        return self.keep(self.partner.conversation(self.system), "new")

    def fork(self, words: list[str]) -> str:
        expect(words, "/fork [ID]", 0, 1)
        source = self.chosen(words)
        return self.keep(self.conversations[source].fork(), f"copy of {source}")

    def switch(self, words: list[str]) -> str:
        expect(words, "/switch ID", 1)
        self.current_id = self.chosen(words)
        return f"conversation {self.current_id}"

    def drop(self, words: list[str]) -> str:
        expect(words, "/drop [ID]", 0, 1)
        dropped = self.chosen(words)
        self.conversations.pop(dropped).close()
        if dropped != self.current_id:
            return f"dropped {dropped}"
        if self.conversations:
            self.current_id = next(reversed(self.conversations))
            return f"dropped {dropped}; conversation {self.current_id}"
        return f"dropped {dropped}; {self.create([])}"

    def save(self, words: list[str]) -> str:
        path = file_of(words, "/save FILE")
        size = self.current.save(path)
        return f"wrote {path}, " + (f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB")

    def load(self, words: list[str]) -> str:
        path = file_of(words, "/load FILE")
        woken = self.partner.wake(path)
        return self.keep(woken, f"from {path}, {counted(len(questions(woken)), 'turn')}")

    def arguments(self, words: list[str]) -> str:
        expect(words, "/args [KEY VALUE]", 0, 2)
        if words:
            given, text = words
            key = given.removeprefix("--").replace("_", "-")
            key = SHORT.get(key, key)
            if key not in ARGUMENTS:
                raise RequestError(f"/args knows {', '.join(ARGUMENTS)}, not {given!r}")
            try:
                changed = {field_of(key): self.value(key, text)}
            except KeyError:
                raise RequestError(f"{key} cannot be {text!r}: it must be on or off") from None
            except ValueError:
                raise RequestError(f"{key} cannot be {text!r}: a number is expected") from None
            self.params = replace(self.params, **changed)
        values = {key: getattr(self.params, field_of(key)) for key in ARGUMENTS}
        return "\n".join(
            f"{key:<20}{self.wording.nothing if value is None else value}" for key, value in values.items()
        )

    def value(self, key: str, text: str) -> Any:
        """A value as it was typed. Raises KeyError, ValueError for one that is none."""
        if text == NONE and field_of(key) in {each.name for each in fields(self.params) if each.default is None}:
            return None
        return ARGUMENTS[key](text)

    def help(self, words: list[str]) -> str:
        expect(words, "/help", 0)
        saved, loaded, unset, _ = self.wording
        return HELP.format(saved=saved, loaded=loaded, unset=unset)

    def exit(self, words: list[str]) -> str:
        expect(words, "/exit", 0)
        raise Leave

    def keep(self, conversation: Talk[Params], what: str) -> str:
        """Number a conversation and make it the current one."""
        self.last_id += 1
        self.conversations[self.last_id] = conversation
        self.current_id = self.last_id
        return f"conversation {self.last_id} ({what})"

    def chosen(self, words: list[str]) -> int:
        """The conversation that a command names; the current one if it names none."""
        if not words:
            return self.current_id
        found = next((number for number in self.conversations if str(number) == words[0]), None)
        if found is None:
            there = ", ".join(map(str, self.conversations))
            raise RequestError(f"no conversation {shown(words[0])}: there are {there}")
        return found


def questions(conversation: Talk[Any]) -> list[dict[str, Any]]:
    """What the user said."""
    return [message for message in conversation.messages if message["role"] == "user"]


def field_of(key: str) -> str:
    """The field of SamplingParams that /args calls so."""
    return key.replace("-", "_")


def file_of(words: list[str], usage: str) -> Path:
    """The file that a command names. Raises RequestError if it names none."""
    if not words:
        raise RequestError(f"usage: {usage}")
    try:
        return Path(words[0]).expanduser()
    except RuntimeError:
        raise RequestError(f"{words[0]}: there is no such home folder; give a full path") from None


def expect(words: list[str], usage: str, *counts: int) -> None:
    """Refuse a command with a wrong number of words. Raises RequestError."""
    if len(words) not in counts:
        raise RequestError(f"usage: {usage}")
