"""Bytes, data URIs, paths, PIL images, arrays and lists of them become frames."""

import base64
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import numpy as np
import pytest
from PIL import Image

from image_files import noise, saved, valid_files
from sporelm.errors import RequestError
from sporelm.vision.image_limits import ImageLimits
from sporelm.vision.image_sources import (
    PIECE_CHARACTERS,
    decode_base64,
    load_frames,
    media_type_of,
    read_data_uri,
    read_image_bytes,
    read_image_file,
)

FILES = valid_files()
PIXELS = noise(6, 9)
DATA = saved(Image.fromarray(PIXELS), "PNG")
ENCODED = base64.b64encode(DATA).decode()
URI = f"data:image/png;base64,{ENCODED}"


@pytest.mark.parametrize(
    "uri",
    [
        URI,
        URI.rstrip("="),
        f"DATA:image/png;BASE64 ,{ENCODED}",
        f"data:;base64,{ENCODED}",
        f"data:image/png;name=a.png;base64,{ENCODED}#fragment",
        f"data:image/png;base64,{ENCODED[:40]}\n {ENCODED[40:]}\t",
        "data:image/png;base64," + ENCODED.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        "data:image/png," + quote_from_bytes(DATA),
        f" {URI}\n",
    ],
)
def test_data_uris_are_read_as_browsers_read_them(uri: str) -> None:
    assert read_data_uri(uri) == DATA


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("data:image/png;base64", "it has no comma before the data"),
        ("data:image/png;base64,A", "its length, 1 characters without padding"),
        ("data:image/png;base64,AAAA=", "malformed data URI"),
        ("data:image/png;base64,AA=A", "malformed data URI"),
        ("data:image/png;base64,AA-_", "malformed data URI"),
        ("data:image/png;base64,\u00e9AAA", "a character that base64 does not have"),
        ("https://example.com/a.png", r"are not opened .*Download the picture"),
        ("HTTP://example.com/a.png", "Download the picture"),
        ("file:///etc/passwd", "file: addresses are not supported"),
        ("ftp://example.com/a.png", "ftp: addresses are not supported"),
        ("/etc/passwd", "not an address of a picture"),
        ("", "not an address of a picture"),
    ],
)
def test_other_uris_are_refused(uri: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_data_uri(uri)
    assert str(caught.value).startswith("image: ")
    assert "\n" not in str(caught.value)


def test_data_uris_are_limited_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ImageLimits(max_bytes=len(DATA))
    assert read_data_uri(URI, limits) == DATA
    assert read_data_uri("data:image/png," + quote_from_bytes(DATA), limits) == DATA
    assert read_data_uri(URI + " " * 100_000 + "\n", limits) == DATA
    with pytest.raises(RequestError, match="the file is too large"):
        read_data_uri(URI, ImageLimits(max_bytes=len(DATA) - 1))
    monkeypatch.setattr("sporelm.vision.image_sources.unquote_to_bytes", None)
    monkeypatch.setattr("sporelm.vision.image_sources.decode_base64", None)
    for uri in ("data:;base64," + "A" * 1000, "data:," + "%20" * 1000, "data:;base64," + "%41" * 2000):
        with pytest.raises(RequestError, match="the file is too large"):
            read_data_uri(uri, ImageLimits(max_bytes=100))


@pytest.mark.parametrize("length", [PIECE_CHARACTERS - 4, PIECE_CHARACTERS, PIECE_CHARACTERS + 4, 3 * PIECE_CHARACTERS])
def test_long_base64_is_decoded_in_pieces(length: int) -> None:
    image = random.Random(length).randbytes(length // 4 * 3 - 1)
    data = base64.b64encode(image).decode()
    assert len(data) == length
    wrapped = base64.encodebytes(image)
    assert decode_base64(data) == decode_base64(data.rstrip("=")) == decode_base64(wrapped) == image
    middle = PIECE_CHARACTERS - 8
    for wrong in (
        data[:middle] + "=" + data[middle + 1 :],
        "A" * (PIECE_CHARACTERS - 2) + "==AAAA",  # at the end of a piece
        data[:-3],
        data[:middle] + "%" + data[middle + 1 :],
    ):
        with pytest.raises(ValueError, match=r"base64|padding"):
            decode_base64(wrong)


def test_media_types() -> None:
    assert media_type_of(" DATA:image/PNG;name=a;base64,AAAA") == "image/png"
    assert media_type_of("data:,AAAA") == ""
    with pytest.raises(RequestError, match="it has no comma"):
        media_type_of("data:image/png;base64")


def test_bytes_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "a picture.png"
    path.write_bytes(DATA)
    for value in (DATA, bytearray(DATA), memoryview(DATA), path, URI):
        assert read_image_bytes(value) == DATA
    assert read_image_bytes(str(path), allow_paths=True) == DATA
    with pytest.raises(RequestError, match="not an address of a picture"):
        read_image_bytes(str(path))
    with pytest.raises(RequestError, match="are not opened"):
        read_image_bytes("https://example.com/a.png", allow_paths=True)
    for limits in (ImageLimits(max_bytes=len(DATA) - 1),):
        for value in (DATA, path, URI):
            with pytest.raises(RequestError, match="too large"):
                read_image_bytes(value, limits)
    with pytest.raises(RequestError, match=r"cannot read .*nothing.png.*: No such file or directory\. Check the path"):
        read_image_file(tmp_path / "nothing.png")
    with pytest.raises(RequestError, match="cannot read"):
        read_image_file(tmp_path)
    with pytest.raises(RequestError, match="cannot read"):
        read_image_file("a\0b")
    with pytest.raises(RequestError, match=r"not a picture \(got 3; allowed bytes, a path"):
        read_image_bytes(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: DATA,
        lambda path: str(path),
        lambda path: path,
        lambda path: URI,
        lambda path: Image.open(path),
        lambda path: Image.fromarray(PIXELS),
        lambda path: PIXELS,
        lambda path: np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)]),
        lambda path: [PIXELS],
        lambda path: PIXELS[None],
        lambda path: (DATA,),
        lambda path: np.asfortranarray(PIXELS),
    ],
)
def test_every_source_gives_the_same_frame(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(DATA)
    (frame,) = load_frames(make(path))
    assert frame.dtype == np.uint8
    np.testing.assert_array_equal(frame, PIXELS)


def test_gray_and_transparent_arrays() -> None:
    gray = noise(4, 5, 1)
    expected = np.repeat(gray, 3, axis=2)
    np.testing.assert_array_equal(load_frames(gray)[0], expected)
    np.testing.assert_array_equal(load_frames(gray[..., 0])[0], expected)
    clear = noise(4, 5, 4)
    np.testing.assert_array_equal(load_frames(clear)[0], load_frames(Image.fromarray(clear))[0])
    clear[..., 3] = 0
    assert load_frames(clear)[0].min() == 255


def test_pil_images_are_turned_as_their_exif_data_says() -> None:
    image = Image.fromarray(PIXELS)
    image.getexif()[0x0112] = 6
    np.testing.assert_array_equal(load_frames(image)[0], PIXELS[::-1].swapaxes(0, 1))


def test_files_of_frames_and_lists_of_pictures() -> None:
    assert len(load_frames(FILES["GIF, animated"])) == 5
    frames = load_frames([PIXELS, noise(3, 3), DATA, Image.fromarray(PIXELS), FILES["GIF, animated"]])
    assert [frame.shape[:2] for frame in frames] == [(6, 9), (3, 3), (6, 9), (6, 9), (48, 64)]
    with pytest.raises(RequestError, match=r"too many frames \(got 17; allowed 16\)"):
        load_frames([PIXELS] * 17)
    with pytest.raises(RequestError, match="too many pixels in all frames"):
        load_frames([PIXELS] * 4, ImageLimits(max_total_pixels=4 * 54 - 1))
    with pytest.raises(RequestError, match="no frames"):
        load_frames([])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (PIXELS / 255, r"wrong type of values \(got float64; allowed uint8\)\. Use \(array \* 255\)\.round\(\)"),
        (PIXELS.astype(np.int32), r"got int32; allowed uint8\)\. Use array\.astype"),
        (PIXELS > 3, "got bool"),
        (PIXELS.transpose(2, 0, 1), r"Move the channels last: array\.transpose\(1, 2, 0\)"),
        (PIXELS[..., :2], r"wrong shape of an array \(got \[6, 9, 2\]"),
        (PIXELS[0, 0], r"got \[3\]"),
        (np.zeros((0, 3, 3), np.uint8), r"got \[0, 3, 3\]"),
        (PIXELS.tolist(), r"not a frame .*Use numpy\.array"),
        (Image.new("F", (2, 2)), "floating-point"),
        (b"text", "not a supported picture"),
        (None, "not a picture"),
        ({"image": DATA}, "not a picture"),
        ("https://example.com/a.png", "are not opened"),
        ("nowhere/a.png", "cannot read 'nowhere/a.png'"),
    ],
)
def test_other_values_are_refused_with_a_remedy(value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        load_frames(value)
    assert "\n" not in str(caught.value)


def test_pixels_of_arrays_and_images_are_limited() -> None:
    for value in (PIXELS, Image.fromarray(PIXELS), DATA):
        with pytest.raises(RequestError, match=r"too many pixels \(got 9 x 6"):
            load_frames(value, ImageLimits(max_pixels=53))


def test_other_arrays_are_named() -> None:
    class Tensor:
        def __array__(self) -> None: ...

    with pytest.raises(RequestError, match=r"not a numpy array \(got a Tensor\)"):
        load_frames(Tensor())
