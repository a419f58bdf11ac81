"""Where the lines of a chat come from: a terminal with history and editing, or a pipe."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm import settings
from sporelm.cli.interrupt import is_ending

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings


def messages(prompt: Callable[[], str]) -> Iterator[str]:
    """The messages of the user until the input ends, empty ones left out; `prompt` is what stands before the cursor."""
    source = from_terminal(prompt) if sys.stdin.isatty() and sys.stdout.isatty() else from_pipe()
    for text in source:
        if text.strip():
            yield text.strip()


def from_pipe() -> Iterator[str]:
    """One message per line; a backslash at the end of a line joins the next one to it."""
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


def from_terminal(prompt: Callable[[], str]) -> Iterator[str]:
    """Messages typed with history and editing. Ctrl-C clears the line, Ctrl-D on an empty one ends."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(
        history=history(),
        multiline=True,
        key_bindings=key_bindings(),
        prompt_continuation="... ",
    )
    while True:
        try:
            yield session.prompt(prompt())
        except KeyboardInterrupt:
            if is_ending():
                raise
            print("(Ctrl-D or /exit leaves)", file=sys.stderr)
        except EOFError:
            return


def key_bindings() -> "KeyBindings":
    """Enter sends, unless a backslash stands before the cursor; Alt-Enter starts a new line."""
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


def history() -> "History":
    """What was typed before, in a file that only the user may read; where that cannot be, in memory, and it says so."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = Path(settings.user_folder("data")) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("r+b"):
            return FileHistory(str(path))
    except OSError as error:
        print(f"spore: {str(path)!r}: {error.strerror}; what you type is not remembered", file=sys.stderr)
        return InMemoryHistory()
