"""Pictures become RGB pixels; files that are hostile or damaged become errors."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from image_files import (
    HTML,
    SVG,
    exif_loop,
    gif_file,
    jpeg_with_exif,
    noise,
    png_bomb,
    png_chunk,
    png_file,
    saved,
    valid_files,
    webp_canvas,
)
from sporelm.errors import RequestError
from sporelm.vision.image_limits import ImageLimits
from sporelm.vision.pillow_decoding import choose_frames, convert_to_rgb, decode_picture, read_webp_size

LIMITS = ImageLimits()
FILES = valid_files()


def decode(data: bytes, limits: ImageLimits = LIMITS) -> list[NDArray[np.uint8]]:
    picture = decode_picture(data, limits)
    shape = (picture.height, picture.width, 3)
    return [np.frombuffer(frame, np.uint8).reshape(shape) for frame in picture.frames]


def over_white(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Lay [..., 4] over white, rounded to nearest."""
    alpha = pixels[..., 3:].astype(int)
    return ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


@pytest.mark.parametrize("name", FILES)
def test_valid_files_decode(name: str) -> None:
    frames = decode(FILES[name])
    assert decode_picture(FILES[name], LIMITS).format == name.split(",")[0].split()[0].replace("APNG", "PNG")
    assert len(frames) == (5 if "animated" in name else 1)


@pytest.mark.parametrize("name", ["PNG", "BMP", "GIF", "WEBP"])
def test_lossless_formats_give_their_pixels(name: str) -> None:
    pixels = noise(7, 5) if name != "GIF" else np.repeat(noise(7, 5, 1), 3, axis=2)
    options = {"lossless": True} if name == "WEBP" else {}
    (frame,) = decode(saved(Image.fromarray(pixels), name, **options))
    np.testing.assert_array_equal(frame, pixels)


def test_jpeg_is_close_to_its_pixels() -> None:
    pixels = np.full((16, 24, 3), (200, 90, 30), np.uint8)
    (frame,) = decode(saved(Image.fromarray(pixels), "JPEG", quality=95))
    assert np.abs(frame.astype(int) - pixels).max() <= 3
    (cmyk,) = decode(saved(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=95))
    assert np.abs(cmyk.astype(int) - pixels).max() <= 6


@pytest.mark.parametrize("name", ["PNG", "WEBP"])
def test_alpha_is_laid_over_white(name: str) -> None:
    pixels = noise(9, 11, 4)
    options = {"lossless": True, "exact": True} if name == "WEBP" else {}
    (frame,) = decode(saved(Image.fromarray(pixels), name, **options))
    np.testing.assert_array_equal(frame, over_white(pixels))


def test_gray_with_alpha_is_laid_over_white() -> None:
    pixels = noise(5, 6, 2)
    (frame,) = decode(saved(Image.fromarray(pixels), "PNG"))
    np.testing.assert_array_equal(frame, over_white(pixels[..., [0, 0, 0, 1]]))


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_gray_of_few_bits_spans_black_to_white_and_has_a_transparent_sample(depth: int) -> None:
    most = (1 << depth) - 1
    samples = np.arange(8, dtype=np.uint8)[None] * 37 & most
    packed = np.packbits(np.unpackbits(samples[..., None], axis=-1)[..., 8 - depth :].reshape(1, -1), axis=-1)
    expected = np.repeat((samples.astype(int) * 255 // most)[..., None], 3, axis=2)
    (frame,) = decode(png_file(8, 1, depth, 0, packed.tobytes()))
    np.testing.assert_array_equal(frame, expected)
    transparent = int(samples[0, 1])
    expected[samples == transparent] = 255
    (frame,) = decode(png_file(8, 1, depth, 0, packed.tobytes(), png_chunk(b"tRNS", struct.pack(">H", transparent))))
    np.testing.assert_array_equal(frame, expected)


def test_the_upper_bits_of_16_bit_samples_count() -> None:
    samples = np.array([[0, 255, 256, 0x1234, 0x12FF, 65535]], ">u2")
    upper = (samples >> 8).astype(np.uint8)
    (frame,) = decode(png_file(6, 1, 16, 0, samples.tobytes()))
    np.testing.assert_array_equal(frame, np.repeat(upper[..., None], 3, axis=2))
    (frame,) = decode(png_file(6, 1, 16, 0, samples.tobytes(), png_chunk(b"tRNS", b"\x12\x34")))
    assert frame[0, :, 0].tolist() == [0, 0, 1, 255, 0x12, 255]
    (frame,) = decode(png_file(2, 1, 16, 2, samples.tobytes()))
    np.testing.assert_array_equal(frame.reshape(-1), upper.reshape(-1))
    (frame,) = decode(png_file(2, 1, 16, 2, samples.tobytes(), png_chunk(b"tRNS", samples[0, 3:].tobytes())))
    assert frame.tolist() == [[[0, 0, 1], [255, 255, 255]]]
    alpha = np.array([[[0x1000, 0x2000, 0x3000, 0xFFFF], [1, 2, 3, 0]]], ">u2")
    (frame,) = decode(png_file(2, 1, 16, 6, alpha.tobytes()))
    assert frame.tolist() == [[[0x10, 0x20, 0x30], [255, 255, 255]]]


def test_palettes_and_their_transparent_entries() -> None:
    palette = png_chunk(b"PLTE", bytes([10, 20, 30, 40, 50, 60, 70, 80, 90]))
    (frame,) = decode(png_file(3, 1, 8, 3, b"\0\1\2", palette))
    assert frame.tolist() == [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    (frame,) = decode(png_file(3, 1, 8, 3, b"\0\1\2", palette, png_chunk(b"tRNS", b"\xff\0\x80")))
    expected = over_white(np.array([[10, 20, 30, 255], [40, 50, 60, 0], [70, 80, 90, 128]], np.uint8))
    np.testing.assert_array_equal(frame[0], expected)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBX", "RGBa", "La", "CMYK", "YCbCr", "HSV", "I;16", "I"])
def test_every_mode_of_pillow_becomes_rgb(mode: str) -> None:
    white = Image.new("RGBA", (3, 2), "white")
    if mode.startswith("I"):
        image = Image.new(mode, (3, 2), 65535)
    elif mode in ("La", "PA"):
        image = white.convert("LA").convert(mode)
    else:
        image = white.convert(mode) if mode == "RGBa" else white.convert("RGB").convert(mode)
    result = convert_to_rgb(image)
    assert result.mode == "RGB"
    assert np.asarray(result).min() == 255
    assert image.mode == mode


def test_floating_point_modes_are_refused() -> None:
    with pytest.raises(RequestError, match=r"no known range \(got mode F"):
        convert_to_rgb(Image.new("F", (1, 1)))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(name: str, orientation: int) -> None:
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: a[::-1].swapaxes(0, 1),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: a[:, ::-1].swapaxes(0, 1),
    }
    image = Image.fromarray(noise(16, 24))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if name == "WEBP" else {}
    (plain,) = decode(saved(image, name, **options))
    (turned,) = decode(saved(image, name, exif=exif, **options))
    np.testing.assert_array_equal(turned, turns[orientation](plain))


def test_frames_are_chosen_evenly() -> None:
    assert choose_frames(1, 16) == [0]
    assert choose_frames(16, 16) == list(range(16))
    assert choose_frames(100, 4) == [0, 33, 66, 99]
    assert choose_frames(10, 1) == [0]
    assert choose_frames(0, 4) == [0]
    for count in range(2, 60):
        for most in range(2, 20):
            chosen = choose_frames(count, most)
            assert chosen[0] == 0
            assert chosen[-1] == count - 1
            assert len(chosen) == min(count, most) == len(set(chosen))
            assert np.ptp(np.diff(chosen)) <= 1


@pytest.mark.parametrize("name", ["GIF", "WEBP"])
def test_animations_give_their_frames(name: str) -> None:
    frames = [Image.new("RGB", (6, 4), (step * 10, 0, 255 - step * 10)) for step in range(20)]
    options = {"lossless": True} if name == "WEBP" else {}
    data = saved(frames[0], name, save_all=True, append_images=frames[1:], **options)
    chosen = decode(data, ImageLimits(max_frames=5))
    assert [int(frame[0, 0, 0]) for frame in chosen] == [0, 50, 100, 140, 190]
    assert len(decode(data)) == 16
    assert len(decode(data, ImageLimits(max_frames=1))) == 1
    with pytest.raises(RequestError, match="too many pixels in all frames"):
        decode(data, ImageLimits(max_total_pixels=16 * 24 - 1))


def test_frames_of_a_gif_are_what_pillow_composes() -> None:
    data = FILES["GIF, animated"]
    with Image.open(io.BytesIO(data)) as image:
        expected = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    np.testing.assert_array_equal(decode(data), expected)


def test_an_animated_png_gives_its_first_frame() -> None:
    (frame,) = decode(FILES["APNG"])
    np.testing.assert_array_equal(frame, noise(48, 64))


def test_a_frame_that_enlarges_a_gif_is_cropped_or_refused() -> None:
    first = gif_file(4, 4, 1)
    second = saved(Image.fromarray(noise(8, 8, 1)[..., 0]), "GIF")
    assert [frame.shape for frame in decode(first[:-1] + second[second.index(b",") :])] == [(4, 4, 3)] * 2
    huge = gif_file(4, 4, 1, (0, 0, 65535, 65535))
    with pytest.raises(RequestError, match="too many pixels"):
        decode(first[:-1] + huge[huge.index(b",") :])
    with pytest.raises(RequestError, match="too many pixels"):
        decode(huge)


# ---- damaged and hostile files


@pytest.mark.parametrize("name", [name for name in FILES if name != "APNG"])
@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.9])
def test_truncated_files_are_errors(name: str, part: float) -> None:
    data = FILES[name]
    with pytest.raises(RequestError, match=r"^image: the \w+ file is damaged or truncated \(.+\)\. Send it again"):
        decode(data[: max(int(len(data) * part), 12)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"the file is empty \(got 0 bytes; allowed PNG, JPEG, WebP, GIF, BMP\)"),
        (SVG, r"not a supported picture \(got an SVG drawing; allowed PNG, JPEG, WebP, GIF, BMP\)\. Render it to PNG"),
        (b"\xef\xbb\xbf \n<svg onload=alert(1)>", "an SVG drawing"),
        (HTML, "an HTML page; .* Use the address of the picture itself"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"II*\0" + bytes(99), "a TIFF picture"),
        (b"\0\0\0\x20ftypheic" + bytes(20), "a HEIC picture"),
        (b"\0\0\0\x20ftypavif" + bytes(20), "an AVIF picture"),
        (b"\0\0\0\x20ftypisom" + bytes(20), "a video; .* Send single frames"),
        (b"\x1aE\xdf\xa3" + bytes(20), "a video"),
        (b"RIFF\0\0\0\0AVI LIST", "a video"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "a PostScript file"),
        (b"PK\3\4" + bytes(20), "a ZIP archive"),
        (b"iVBORw0KGgoAAAANSUhEUg", "base64 text; .* Decode it"),
        (b"data:image/png;base64,iVBORw0KGgo=", "a data URI in place of a file"),
        (b'{"url": 1}', "JSON text"),
        (b"P6 1 1 255 abc", "14 bytes that begin with 50 36 20 31 20 31 20 32"),
        (b"\x01", "1 bytes that begin with 01"),
    ],
)
def test_other_files_are_named_with_a_remedy(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


def test_the_number_of_bytes_is_limited() -> None:
    with pytest.raises(RequestError, match=r"the file is too large \(got \d+ bytes; allowed 100\)"):
        decode(FILES["PNG"], ImageLimits(max_bytes=100))


@pytest.mark.parametrize(
    "data",
    [
        png_file(10_000, 10_000, 8, 2, b"abc"),
        png_file(0x7FFFFFFF, 0x7FFFFFFF, 8, 6, b"abc"),
        gif_file(20_000, 20_000, 1),
        webp_canvas(16_383, 16_383),
        webp_canvas(1 << 24, 1 << 7),
        FILES["BMP"][:18] + struct.pack("<ii", 100_000, 100_000) + FILES["BMP"][26:],
        FILES["JPEG"].replace(b"\x08\0\x30\0\x40\x03", b"\x08\xff\xdc\xff\xdc\x03"),
        FILES["WebP"][:26] + struct.pack("<HH", 16_000, 16_000) + FILES["WebP"][30:],
    ],
    ids=["PNG", "PNG, largest", "GIF", "WebP", "WebP, wide", "BMP", "JPEG", "WebP, VP8"],
)
def test_bombs_are_refused_by_their_headers(data: bytes) -> None:
    with pytest.raises(RequestError, match=r"too many pixels \(got \d+ x \d+; allowed 40 million\)"):
        decode(data)


def test_a_bomb_below_the_limit_decodes() -> None:
    (frame,) = decode(png_bomb(6000, 6000))
    assert frame.shape == (6000, 6000, 3)
    assert frame.max() == 0


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_compressed_text_of_a_png_is_limited(name: bytes) -> None:
    head = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[name]
    bomb = png_chunk(name, head + zlib.compress(bytes(70 << 20)))
    with pytest.raises(RequestError, match="damaged or truncated"):
        decode(png_file(1, 1, 8, 0, b"\0", bomb))


@pytest.mark.parametrize(
    "size", [(0, 1), (1, 0), (7, 3), (3, 200), (2000, 2), (0x80000000, 1)], ids=lambda size: f"{size[0]}x{size[1]}"
)
def test_headers_of_other_sizes_than_the_pixels(size: tuple[int, int]) -> None:
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    with pytest.raises(RequestError, match=r"^image: .*\. (Send|Scale)"):
        decode(png_file(3, 3, 8, 2, noise(3, 3).tobytes(), header=header))


def test_interlaced_pixels_that_end_early_are_an_error() -> None:
    """Adam7 stores 1, 1 and 3 pixels of this picture in three of its seven passes."""
    header = struct.pack(">IIBBBBB", 5, 1, 8, 0, 0, 0, 1)
    lines = b"\0\x11" + b"\0\x22" + b"\0\x33" + b"\0\x44\x55"
    for number, is_whole in ((0, True), (1, False), (4, False)):
        idat = png_chunk(b"IDAT", zlib.compress(lines[: len(lines) - number]))
        data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + idat + png_chunk(b"IEND", b"")
        if is_whole:
            assert decode(data)[0][0, :, 0].tolist() == [0x11, 0x44, 0x33, 0x55, 0x22]
        else:
            with pytest.raises(RequestError, match="damaged"):
                decode(data)


@pytest.mark.parametrize("depth", [1, 8])
def test_black_pictures_are_whole(depth: int) -> None:
    for height in (1, 3):
        rows = bytes((9 * depth + 7) // 8 * height)
        assert decode(png_file(9, height, depth, 0, rows))[0].max() == 0
        with pytest.raises(RequestError, match="its pixels end before the last row"):
            decode(
                png_file(9, height, depth, 0, rows, header=struct.pack(">IIBBBBB", 9, height + 1, depth, 0, 0, 0, 0))
            )


def test_headers_without_pixels_are_refused() -> None:
    for data in (gif_file(0, 0, 1, (0, 0, 0, 0)), FILES["BMP"][:18] + bytes(8) + FILES["BMP"][26:]):
        with pytest.raises(RequestError, match="image: "):
            decode(data)


def test_lying_lengths_of_chunks() -> None:
    data = bytearray(FILES["PNG"])
    data[8:12] = struct.pack(">I", 0x7FFFFFFF)
    with pytest.raises(RequestError, match="damaged"):
        decode(bytes(data))
    webp = FILES["WebP"][:4] + struct.pack("<I", 0xFFFFFFF0) + FILES["WebP"][8:]
    with pytest.raises(RequestError, match="damaged"):
        decode(webp)


def test_polyglots_are_the_picture_that_they_begin_with() -> None:
    page = FILES["GIF"] + HTML
    np.testing.assert_array_equal(decode(page), decode(FILES["GIF"]))
    archive = FILES["PNG"] + b"PK\3\4" + bytes(100)
    np.testing.assert_array_equal(decode(archive), decode(FILES["PNG"]))
    with pytest.raises(RequestError, match="damaged"):
        decode(b"GIF89a/*" + HTML)


@pytest.mark.parametrize(
    "tiff",
    [
        exif_loop(),
        b"II*\0\x08\0\0\0",
        b"MM\0*\xff\xff\xff\xff",
        b"garbage",
        b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 0x0112, 3, 0xFFFFFFFF, 0xFFFFFFFF) * 5,
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 99, 0) + bytes(4),
    ],
    ids=["loop", "empty", "far", "garbage", "many", "unknown"],
)
def test_damaged_exif_data_does_not_matter(tiff: bytes) -> None:
    assert decode(jpeg_with_exif(tiff))[0].shape == (8, 16, 3)


def test_pillow_tries_no_other_plugin() -> None:
    """Even if a program has registered one that takes every file."""
    code = (
        "import sys\n"
        "from PIL import Image\n"
        "def fail(*_): raise SystemExit('another plugin ran')\n"
        "Image.register_open('PNG', fail, lambda _: True)\n"
        "Image.register_open('ANY', fail, lambda _: True)\n"
        "from sporelm.vision.image_limits import ImageLimits\n"
        "from sporelm.vision.pillow_decoding import decode_picture\n"
        "for line in sys.stdin:\n"
        "    decode_picture(bytes.fromhex(line), ImageLimits())\n"
        "others = ('Eps', 'Tiff', 'Psd', 'Fpx', 'Avif', 'Icns', 'Mpo', 'Jpeg2K', 'Pdf')\n"
        "allowed = {'Tiff'}  # parses EXIF data\n"
        "print([each for each in others if f'PIL.{each}ImagePlugin' in sys.modules and each not in allowed])\n"
    )
    lines = "\n".join(data.hex() for data in FILES.values())
    done = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def test_a_jpeg_of_several_pictures_is_its_first_one() -> None:
    images = [Image.fromarray(noise(8, 8, seed=seed)) for seed in (1, 2)]
    data = saved(images[0], "MPO", save_all=True, append_images=images[1:])
    picture = decode_picture(data, LIMITS)
    assert picture.format == "JPEG"
    assert len(picture.frames) == 1


def test_sizes_of_webp_files_are_read_from_their_headers() -> None:
    image = Image.fromarray(noise(13, 300))
    for options in ({"lossless": True}, {"quality": 80}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}):
        assert read_webp_size(saved(image, "WEBP", **options)) == (300, 13)
    with pytest.raises(RequestError, match="damaged"):
        read_webp_size(b"RIFF\0\0\0\0WEBPVP8 ")


def test_memory_errors_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "tobytes", fail)
    with pytest.raises(RequestError, match=r"needs too much memory \(allowed 1024 MiB\)"):
        decode(FILES["PNG"])


def test_time_is_checked_between_frames() -> None:
    with pytest.raises(RequestError, match=r"takes too long \(allowed 1e-09 s\)"):
        decode(FILES["GIF, animated"], ImageLimits(max_seconds=1e-9))
