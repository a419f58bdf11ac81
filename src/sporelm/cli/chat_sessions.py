"""The conversations of one chat, and the slash commands that create, fork, switch and drop them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from sporelm.cli.image_options import Picture, read_picture, unquote
from sporelm.cli.sampling_options import LENGTH_OPTIONS, PENALTY_OPTIONS, SAMPLER_OPTIONS
from sporelm.cli.terminal_text import escape_line, pluralize
from sporelm.errors import RequestError, safe_repr

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HELP = """\
/image FILE          show a picture with the next message; may be repeated
/image [-]           list the pictures of the next message; -: leave them out
/list                list the conversations; * marks the current one
/create              start a new conversation
/fork [ID]           copy a conversation (default: the current one) and switch to the copy
/switch ID           switch to another conversation
/drop [ID]           delete a conversation (default: the current one)
/save FILE           write the current conversation to a file, {saved}
/load FILE           continue a conversation that /save wrote{loaded}
/args [KEY VALUE]    show the sampling parameters, or set one{unset}
/help                show this text
/exit                leave (so does Ctrl-D)
Alt-Enter, or a backslash at the end of a line, starts a new line. Ctrl-C stops an answer."""

BOOLEANS = {"on": True, "true": True, "off": False, "false": False}
UNSET = "none"  # unsets a parameter that is optional
ALIASES = {"temp": "temperature"}  # the name of the option -> the name in /args

NUMBER_OPTIONS: list[tuple[str, str, Any, Any, str]] = [
    *SAMPLER_OPTIONS,
    *PENALTY_OPTIONS,
    ("--max-tokens", "N", int, 256, ""),
    *LENGTH_OPTIONS,
]


def key_of(option: str) -> str:
    """Return the name of an option in /args."""
    name = option.removeprefix("--")
    return ALIASES.get(name, name)


# Name in /args -> how to parse the value. The field of SamplingParams has underscores for hyphens.
ARGUMENTS: dict[str, Callable[[str], Any]] = {
    **{key_of(option): kind for option, _, kind, *_ in NUMBER_OPTIONS},
    "seed": int,
    "ignore-eos": lambda text: BOOLEANS[text.lower()],
    "roll": lambda text: BOOLEANS[text.lower()],
}

SLASH_COMMANDS = ("image", "list", "create", "fork", "switch", "drop", "save", "load", "args", "help", "exit")
FILE_COMMANDS = ("image", "save", "load")  # commands whose argument is the rest of the line, including spaces


class ChatExit(Exception):
    """Raised by /exit."""


class ReasoningPiece(NamedTuple):
    """A piece of a model's reasoning, which is shown and is not part of the answer."""

    text: str


if TYPE_CHECKING:
    Params = TypeVar("Params", bound=DataclassInstance)
    AskParams = TypeVar("AskParams", bound=DataclassInstance, contravariant=True)
else:
    Params, AskParams = TypeVar("Params"), TypeVar("AskParams")


class ChatConversation(Protocol[AskParams]):
    """A conversation with a local model (`sporelm.api.Conversation`) or with a server (`cli.remote`).

    `ask` takes the bytes of pictures, and raises before it changes anything. It yields pieces with `text` and
    `completion`, which only the last one has; closing the generator keeps the answer so far.
    """

    messages: list[dict[str, Any]]

    @property
    def is_asleep(self) -> bool: ...

    def ask(self, text: str, params: AskParams, images: Sequence[bytes] = (), /) -> Generator[Any, None, None]: ...

    def fork(self) -> "ChatConversation[AskParams]": ...

    def save(self, path: Path, /) -> int: ...

    def close(self) -> None: ...


class ChatModel(Protocol[AskParams]):
    """A local model or a server: starts conversations and restores saved ones."""

    def conversation(self, system: str | None = None, /) -> ChatConversation[AskParams]: ...

    def wake(self, path: Path, /) -> ChatConversation[AskParams]: ...


class HelpTexts(NamedTuple):
    """The texts that differ between a local model and a server."""

    saved: str = "with its KV cache"
    loaded: str = ", without recomputing it"
    unset: str = ""
    unset_value: str = UNSET  # shown for a parameter that is not set


class Sessions(Generic[Params]):
    """The numbered conversations with one model; one is the current one."""

    def __init__(
        self,
        model: ChatModel[Params],
        params: Params,
        system: str | None = None,
        help_texts: HelpTexts = HelpTexts(),  # noqa: B008 - it is immutable
        check_picture: Callable[[Picture], Picture] = lambda picture: picture,
    ) -> None:
        """Begin with an empty conversation.

        check_picture   raises RequestError for a picture that the model does not take
        """
        self.model = model
        self.params = params
        self.system = system
        self.help_texts = help_texts
        self.check_picture = check_picture
        self.conversations: dict[int, ChatConversation[Params]] = {}
        self._pictures: dict[int, list[Picture]] = {}  # of the next message of each conversation
        self.current_id = 0
        self.last_id = 0
        self.create([])

    @property
    def current(self) -> ChatConversation[Params]:
        return self.conversations[self.current_id]

    @property
    def pictures(self) -> list[Picture]:
        """The pictures of the next message of the current conversation."""
        return self._pictures.get(self.current_id, [])

    def prompt(self) -> str:
        """Return the input prompt of a terminal."""
        pictures = f" [{pluralize(len(self.pictures), 'picture')}]" if self.pictures else ""
        return f"{self.current_id}{pictures}> "

    def ask(self, text: str) -> Generator[Any, None, None]:
        """Say `text` with the pictures of the next message, and yield the answer piece by piece.

        The pictures stay for another try unless the message joins the conversation. Raises like the conversation.
        """
        number, conversation = self.current_id, self.current
        before = conversation.messages
        try:
            images = [picture.data for picture in self.pictures]
            with closing(conversation.ask(text, self.params, images)) as pieces:
                yield from pieces
        finally:
            if conversation.messages is not before:
                self._pictures.pop(number, None)

    def add_pictures(self, pictures: Sequence[Picture]) -> None:
        """Add pictures to the next message. Raises RequestError for one that the model does not take."""
        checked = [self.check_picture(picture) for picture in pictures]
        if checked:
            self._pictures[self.current_id] = [*self.pictures, *checked]

    def run_command(self, line: str) -> str:
        """Run one slash command and return its output. Raises ChatExit for /exit, RequestError for an invalid one."""
        name, *rest = line[1:].split(maxsplit=1) or [""]
        words = [rest[0].strip()] if rest and name in FILE_COMMANDS else " ".join(rest).split()
        commands = {
            "image": self.show_picture,
            "list": self.list_conversations,
            "create": self.create,
            "fork": self.fork,
            "switch": self.switch,
            "drop": self.drop,
            "save": self.save,
            "load": self.load,
            "args": self.set_argument,
            "help": self.help,
            "exit": self.exit,
        }
        if name not in commands:
            raise RequestError(f"Unknown command: /{name} (see /help)")
        return commands[name](words)

    def show_picture(self, words: list[str]) -> str:
        if words == ["-"]:
            self._pictures.pop(self.current_id, None)
        elif words:
            self.add_pictures([read_picture(unquote(words[0]))])
        return self.list_pictures()

    def list_pictures(self) -> str:
        """Return the pictures of the next message as text."""
        if not self.pictures:
            return "no pictures with the next message"
        lines = [f"{number}  {picture}" for number, picture in enumerate(self.pictures, 1)]
        return "\n".join(["with the next message:", *lines])

    def list_conversations(self, words: list[str]) -> str:
        check_usage(words, "/list", 0)
        lines = []
        for number, conversation in self.conversations.items():
            questions = user_messages(conversation)
            first = "(empty)"
            if questions:
                first = describe_content(questions[0]["content"])
            mark = "*" if number == self.current_id else " "
            asleep = "  (asleep)" if conversation.is_asleep else ""
            lines.append(f"{mark} {number}  {pluralize(len(questions), 'turn')}  {first}{asleep}")
        return "\n".join(lines)

    def create(self, words: list[str]) -> str:
        check_usage(words, "/create", 0)
        return self._add(self.model.conversation(self.system), "new")

    def fork(self, words: list[str]) -> str:
        check_usage(words, "/fork [ID]", 0, 1)
        source = self._find_id(words)
        added = self._add(self.conversations[source].fork(), f"copy of {source}")
        if source in self._pictures:
            self._pictures[self.current_id] = list(self._pictures[source])
        return added

    def switch(self, words: list[str]) -> str:
        check_usage(words, "/switch ID", 1)
        self.current_id = self._find_id(words)
        return f"conversation {self.current_id}"

    def drop(self, words: list[str]) -> str:
        check_usage(words, "/drop [ID]", 0, 1)
        dropped = self._find_id(words)
        self.conversations.pop(dropped).close()
        self._pictures.pop(dropped, None)
        if dropped != self.current_id:
            return f"dropped {dropped}"
        if self.conversations:
            self.current_id = next(reversed(self.conversations))
            return f"dropped {dropped}; conversation {self.current_id}"
        return f"dropped {dropped}; {self.create([])}"

    def save(self, words: list[str]) -> str:
        path = parse_file(words, "/save FILE")
        size = self.current.save(path)
        return f"wrote {path}, " + (f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB")

    def load(self, words: list[str]) -> str:
        path = parse_file(words, "/load FILE")
        conversation = self.model.wake(path)
        return self._add(conversation, f"from {path}, {pluralize(len(user_messages(conversation)), 'turn')}")

    def set_argument(self, words: list[str]) -> str:
        check_usage(words, "/args [KEY VALUE]", 0, 2)
        if words:
            name, text = words
            key = key_of(name.replace("_", "-"))
            if key not in ARGUMENTS:
                raise RequestError(f"/args: unknown parameter {name!r}. There are {', '.join(ARGUMENTS)}")
            try:
                changes = {field_of(key): self._parse_value(key, text)}
            except KeyError:
                raise RequestError(f"{key} cannot be {text!r}: it must be on or off") from None
            except ValueError:
                raise RequestError(f"{key} cannot be {text!r}: a number is expected") from None
            self.params = replace(self.params, **changes)
        values = {key: getattr(self.params, field_of(key)) for key in ARGUMENTS}
        unset = self.help_texts.unset_value
        return "\n".join(f"{key:<20}{unset if value is None else value}" for key, value in values.items())

    def _parse_value(self, key: str, text: str) -> Any:
        """Parse the value of a parameter. Raises KeyError or ValueError for an invalid one."""
        if text == UNSET and field_of(key) in {each.name for each in fields(self.params) if each.default is None}:
            return None
        return ARGUMENTS[key](text)

    def help(self, words: list[str]) -> str:
        check_usage(words, "/help", 0)
        return HELP.format(**self.help_texts._asdict())

    def exit(self, words: list[str]) -> str:
        check_usage(words, "/exit", 0)
        raise ChatExit

    def _add(self, conversation: ChatConversation[Params], origin: str) -> str:
        """Number a conversation and make it the current one."""
        self.last_id += 1
        self.conversations[self.last_id] = conversation
        self.current_id = self.last_id
        return f"conversation {self.last_id} ({origin})"

    def _find_id(self, words: list[str]) -> int:
        """Return the id of the conversation that a command names, by default the current one."""
        if not words:
            return self.current_id
        found = next((number for number in self.conversations if str(number) == words[0]), None)
        if found is None:
            known = ", ".join(map(str, self.conversations))
            raise RequestError(f"no conversation {safe_repr(words[0])}: there are {known}")
        return found


def describe_content(content: Any) -> str:
    """Return the beginning of a message as one line; a message with pictures begins with their number."""
    if isinstance(content, str):
        text, count = content, 0
    else:
        text = " ".join(part["text"] for part in content if part["type"] == "text")
        count = sum(part["type"] != "text" for part in content)
    pictures = f"[{pluralize(count, 'picture')}] " if count else ""
    return pictures + escape_line(" ".join(text.split())[:60])


def user_messages(conversation: ChatConversation[Any]) -> list[dict[str, Any]]:
    """Return the messages of the user."""
    return [message for message in conversation.messages if message["role"] == "user"]


def field_of(key: str) -> str:
    """Return the field of SamplingParams for a name in /args."""
    return key.replace("-", "_")


def parse_file(words: list[str], usage: str) -> Path:
    """Return the file that a command names. Raises RequestError if it names none."""
    if not words:
        raise RequestError(f"usage: {usage}")
    try:
        return Path(words[0]).expanduser()
    except RuntimeError:
        raise RequestError(f"{words[0]}: there is no such home folder; give a full path") from None


def check_usage(words: list[str], usage: str, *counts: int) -> None:
    """Raise RequestError unless a command has one of these numbers of arguments."""
    if len(words) not in counts:
        raise RequestError(f"usage: {usage}")
