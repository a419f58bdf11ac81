"""The bytes of a body outside its images."""

import base64
import random

import pytest

from sporelm.serve.http.image_bytes import MIN_RUN, TextByteCounter


def count(body: bytes, size: int) -> int:
    counter = TextByteCounter()
    total = 0
    for start in range(0, len(body), size):
        total = counter.add(body[start : start + size])
    return total


IMAGE = base64.b64encode(random.Random(1).randbytes(30_000)).replace(b"/", b"\\/")


@pytest.mark.parametrize("size", [1, 7, 511, 512, 4096, 1 << 20])
def test_images_do_not_count_however_the_body_arrives(size: int) -> None:
    head, middle, tail = b'{"messages": [{"content": "', b'", "and": "', b'"}]}'
    body = head + IMAGE + middle + IMAGE + tail
    assert count(body, size) == len(head) + len(middle) + len(tail)


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_all_else_counts(size: int) -> None:
    for body in (
        b"[" * 5000,
        b'{"a":1},' * 800,
        "你好".encode() * 900,
        b"word " * 1000,
        (b"x" * (MIN_RUN - 1) + b",") * 9,
    ):
        assert count(body, size) >= len(body) - MIN_RUN
    assert count(b"x" * 5000 + b",", size) == 1


def test_counting_is_linear() -> None:
    """A run that is one character too short for an image is looked at a few times, not once for each of its bytes."""
    body = (b"x" * (MIN_RUN - 1) + b"-") * 8192  # 4 MiB
    assert count(body, 1 << 16) >= len(body) - MIN_RUN
