"""Text files that a user names: read whole, so only files and pipes, up to a limit."""

import sys
from pathlib import Path
from typing import BinaryIO

from sporelm.errors import RequestError
from sporelm.units import in_units

STDIN = "-"
AT_ONCE = 1 << 20  # bytes


def read_text_file(path: Path, what: str, longest: int) -> str:
    """The UTF-8 text of a file of at most `longest` bytes; errors call it `what`, as in "the prompt".

    A pipe is read to its end, which is what a shell's <(command) gives. Raises RequestError for a file that is larger,
    cannot be read or is not UTF-8, and for devices and folders.
    """
    try:
        if path.is_dir():
            raise RequestError(f"{what} {str(path)!r} is a folder; give a file")
        if path.exists() and not path.is_file() and not path.is_fifo():
            raise RequestError(f"{what} {str(path)!r} is a device, not a file; copy it into one")
        with path.open("rb") as file:
            content = _bytes_of(file, longest)
    except (OSError, ValueError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise RequestError(f"{what} {str(path)!r} cannot be read: {why}") from None
    return _decoded(content, f"{what} {str(path)!r}", longest)


def read_text_or_stdin(name: str, what: str, longest: int) -> str:
    """The same of standard input where the name is "-"; else of the file."""
    if not name:
        raise RequestError(f"the name of {what} is empty; give a file")
    if name != STDIN:
        try:
            path = Path(name).expanduser()
        except RuntimeError:
            raise RequestError(f"{what} {name!r} cannot be read: there is no such home folder") from None
        return read_text_file(path, what, longest)
    return _decoded(_bytes_of(sys.stdin.buffer, longest), f"{what} of standard input", longest)


def _bytes_of(file: BinaryIO, longest: int) -> bytearray:
    """All bytes, or some more than `longest`: files of /proc and growing files do not tell their size."""
    content = bytearray()
    while len(content) <= longest and (part := file.read(AT_ONCE)):
        content += part
    return content


def _decoded(content: bytearray, name: str, longest: int) -> str:
    if len(content) > longest:
        raise RequestError(f"{name} has more than {in_units(longest)}, which is the limit; take a part of it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start]
        raise RequestError(f"{name} is not UTF-8 text: byte {error.start} is {found:#04x}; convert it") from None
