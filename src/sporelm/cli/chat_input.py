"""The input of a chat: a terminal with history and editing, or a pipe."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm import settings
from sporelm.cli.chat_sessions import FILE_COMMANDS, SLASH_COMMANDS
from sporelm.cli.interrupt import is_terminating

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings


def read_messages(make_prompt: Callable[[], str]) -> Iterator[str]:
    """Yield the user's messages until the input ends, without empty ones; `make_prompt` returns the input prompt."""
    source = read_terminal(make_prompt) if sys.stdin.isatty() and sys.stdout.isatty() else read_pipe()
    for text in source:
        if text.strip():
            yield text.strip()


def read_pipe() -> Iterator[str]:
    """Yield one message per line; a backslash at the end of a line joins it with the next."""
    parts: list[str] = []
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.endswith("\\"):
            parts.append(text[:-1])
            continue
        yield "\n".join([*parts, text])
        parts = []
    if parts:
        yield "\n".join(parts)


def read_terminal(make_prompt: Callable[[], str]) -> Iterator[str]:
    """Yield messages typed with history and editing. Ctrl-C clears the line, Ctrl-D on an empty line ends."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=make_completer(),
        complete_while_typing=False,
        multiline=True,
        key_bindings=make_key_bindings(),
        prompt_continuation="... ",
    )
    while True:
        try:
            yield session.prompt(make_prompt())
        except KeyboardInterrupt:
            if is_terminating():
                raise
            print("(Ctrl-D or /exit leaves)", file=sys.stderr)
        except EOFError:
            return


def make_completer() -> "Completer":
    """Return the completion by Tab: names of slash commands, and paths behind commands that take a file."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            name, space, word = document.text_before_cursor.partition(" ")
            if not name.startswith("/") or "\n" in name:
                return
            if not space:
                names = [each for each in SLASH_COMMANDS if each.startswith(name[1:])]
                yield from (Completion(f"/{each}", start_position=-len(name)) for each in names)
            elif name[1:] in FILE_COMMANDS:
                yield from paths.get_completions(Document(word.lstrip()), complete_event)

    return CommandCompleter()


def make_key_bindings() -> "KeyBindings":
    """Return key bindings: Enter sends, unless a backslash precedes the cursor; Alt-Enter starts a new line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def open_history() -> "History":
    """Open the history in a file that only the user can read; if that fails, print why and keep it in memory."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(settings.user_folder("data")) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("r+b"):
            return FileHistory(str(path))
    except OSError as error:
        print(f"spore: {str(path)!r}: {error.strerror}; the chat history is not saved", file=sys.stderr)
        return InMemoryHistory()
