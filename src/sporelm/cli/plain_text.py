"""Text out of files and from servers, made fit for a terminal."""

import re
from typing import TextIO

from sporelm import settings

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the line feed


def plain(text: str) -> str:
    """Text out of a file as one line that cannot steer a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def has_colors(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which colours are wanted (NO_COLOR, TERM=dumb)."""
    return stream.isatty() and settings.allows_colors()


def counted(count: int, word: str) -> str:
    """So many of something: "1 token", "2 tokens"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def without_controls(text: str) -> str:
    """A text of many lines that cannot steer a terminal: control characters are escaped, and nothing else."""
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
