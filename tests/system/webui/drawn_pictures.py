"""Pictures for the tests of the web chat, and what waits for them."""

from pathlib import Path
from typing import Any

import pytest

from system.webui.test_web_chat import until

Image = pytest.importorskip("PIL.Image", reason="the pictures are drawn with Pillow, which is not installed")

ORIENTATION = 0x0112  # of EXIF


def draw(path: Path, width: int, height: int, turned: bool = False, **options: Any) -> Path:
    """A picture, red above and blue below; `turned`: stored on its side, with an EXIF orientation that says so."""
    picture = Image.new("RGB", (width, height), (200, 30, 30))
    picture.paste((30, 30, 200), (0, height // 2, width, height))
    if turned:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[ORIENTATION] = 6  # to be turned clockwise
        options["exif"] = exif
    picture.save(path, **options)
    return path


def ready(page: Any, count: int) -> None:
    """Wait until pictures that go with the next message are on the server."""
    until(page, f"document.querySelectorAll('#files .thumb[aria-busy=false]').length === {count}")
