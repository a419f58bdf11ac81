"""Text out of files and from servers, made fit for a terminal."""

import os
import re
from typing import TextIO

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the line feed


def plain(text: str) -> str:
    """Text out of a file as one line that cannot steer a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def has_colors(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that takes colours, and its user wants them.

    NO_COLOR, of any text but an empty one, is a request to have none (no-color.org); TERM=dumb is a terminal without.
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def counted(count: int, word: str) -> str:
    """So many of something: "1 token", "2 tokens"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def without_controls(text: str) -> str:
    """A text of many lines that cannot steer a terminal: control characters are escaped, and nothing else."""
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)
