"""The options --mmproj and --image, and pictures given as files."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sporelm.cli.terminal_text import escape_line, pluralize
from sporelm.errors import RequestError, safe_repr

if TYPE_CHECKING:
    from sporelm.api import LLM

MMPROJ_HELP = "GGUF file with the model's vision tower, which usually has mmproj in its name; folders hold theirs"


class Picture(NamedTuple):
    """A picture of the command line, undecoded.

    rows   image rows that it takes in a prompt; None if the model is on a server
    """

    name: str
    data: bytes
    frames: int = 1
    rows: int | None = None

    def __str__(self) -> str:
        frames = f", {self.frames} frames" if self.frames > 1 else ""
        rows = "" if self.rows is None else f", {pluralize(self.rows, 'token')}"
        return f"{escape_line(self.name)}{frames}{rows}"


def add_mmproj(parser: argparse.ArgumentParser) -> None:
    """Add --mmproj."""
    parser.add_argument("--mmproj", metavar="FILE", help=MMPROJ_HELP)


def add_images(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add --image, which may be repeated."""
    parser.add_argument("--image", dest="images", action="append", default=[], metavar="FILE", help=help_text)


def read_pictures(names: Sequence[str]) -> list[Picture]:
    """Read pictures, and check their formats. Raises RequestError, which names the file."""
    return [read_picture(name) for name in names]


def read_picture(name: str) -> Picture:
    """Read a picture, and check its format. Raises RequestError, which names the file."""
    from sporelm.vision.image_formats import detect_format
    from sporelm.vision.image_sources import is_address, read_image_file

    if not name.strip():
        raise RequestError(f"image: an empty path (got {name!r}). Give the path of a picture.")
    if is_address(name):
        raise RequestError(
            f"image: addresses are not opened (got {safe_repr(name, 100)}; allowed files). Download the picture, and "
            "give its path."
        )
    data = read_image_file(Path(name))  # its errors name the file
    try:
        detect_format(data)
    except RequestError as reason:
        raise RequestError(f"{name}: {reason}") from None
    return Picture(name, data)


def unquote(name: str) -> str:
    """Return a path without quotes around it, unless a file has them in its name."""
    is_quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "'\""
    return name[1:-1] if is_quoted and not Path(name).exists() else name


def check_picture(llm: "LLM", picture: Picture) -> Picture:
    """Return a picture with its number of tokens. Raises RequestError if the model cannot read it."""
    reader = llm.image_reader
    if reader is None:
        llm.take_images(image_messages("", [picture]))  # raises the error of a model without a vision tower
        raise AssertionError("a model that does not see refuses pictures")
    try:
        found = reader.read(picture.data)
    except RequestError as reason:
        raise RequestError(f"{picture.name}: {reason}") from None
    return picture._replace(frames=len(found), rows=sum(image.num_rows for each in found for image in each.images))


def image_messages(text: str, pictures: Sequence[Picture]) -> list[dict[str, object]]:
    """Return a chat of one user message, with pictures before its text."""
    if not pictures:
        return [{"role": "user", "content": text}]
    parts: list[dict[str, object]] = [{"type": "image", "image": picture.data} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
