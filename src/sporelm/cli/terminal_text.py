"""Make text from files and servers safe to print on a terminal."""

import re
from typing import TextIO

from sporelm import settings
from sporelm.errors import rename_options

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def escape_line(text: str) -> str:
    """Return text as one line, with all non-printable characters escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escape_controls(text: str) -> str:
    """Return text of several lines with only its control characters escaped, so that it cannot control a terminal."""
    return CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


def format_error(reason: object) -> str:
    """Return an error's message as one line for a terminal, with flags in place of the names of options."""
    return escape_line(name_flags(" ".join(str(reason).split())))


def name_flags(message: str) -> str:
    """Return a message of the layers below with a flag in place of each option: --max-context for max_context."""
    return rename_options(message, lambda name: f"--{name.replace('_', '-')}")


def supports_colors(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which colours are wanted (NO_COLOR, TERM=dumb)."""
    return stream.isatty() and settings.allows_colors()


def pluralize(count: int, word: str) -> str:
    """Return a count with its noun: "1 token", "2 tokens"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
