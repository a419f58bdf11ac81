"""Picture files that tests make: valid ones of each format, and hostile ones, byte by byte."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'
HTML = b"<!DOCTYPE html>\n<html><body><img src=x onerror=alert(1)></body></html>"


def noise(height: int, width: int, channels: int = 3, seed: int = 1) -> NDArray[np.uint8]:
    """Return random pixels [height, width, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def saved(image: Image.Image, name: str, **options: Any) -> bytes:
    """Return the file of an image in a format."""
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def valid_files() -> dict[str, bytes]:
    """Return small valid files of each format, and of their common variants, by name."""
    image = Image.fromarray(noise(48, 64))
    alpha = Image.fromarray(noise(48, 64, 4))
    frames = [Image.fromarray(noise(48, 64, seed=seed)) for seed in range(2, 6)]
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "PNG": saved(image, "PNG"),
        "PNG with alpha": saved(alpha, "PNG"),
        "PNG with a palette": saved(image.quantize(16), "PNG", transparency=3),
        "PNG of 16 bits": png_file(16, 12, 16, 0, np.arange(192).astype(">u2").tobytes()),
        "APNG": saved(image, "PNG", save_all=True, append_images=frames),
        "JPEG": saved(image, "JPEG", exif=exif),
        "JPEG, progressive": saved(image, "JPEG", progressive=True),
        "JPEG, CMYK": saved(image.convert("CMYK"), "JPEG"),
        "WebP": saved(image, "WEBP"),
        "WebP, lossless": saved(alpha, "WEBP", lossless=True),
        "WebP, animated": saved(image, "WEBP", save_all=True, append_images=frames),
        "GIF": saved(image, "GIF"),
        "GIF, animated": saved(image, "GIF", save_all=True, append_images=frames, disposal=2),
        "BMP": saved(image, "BMP"),
        "BMP, 8 bits": saved(image.convert("L"), "BMP"),
    }


def png_chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file, with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_file(
    width: int, height: int, depth: int, color: int, rows: bytes, *chunks: bytes, header: bytes | None = None
) -> bytes:
    """Return a PNG file of unfiltered rows: samples as the file stores them. `chunks` stand before the pixels."""
    stride = len(rows) // height if height else 0
    lines = b"".join(b"\0" + rows[start : start + stride] for start in range(0, len(rows), stride or 1))
    fields = header if header is not None else struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    end = [png_chunk(b"IDAT", zlib.compress(lines)), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join([png_chunk(b"IHDR", fields), *chunks, *end])


def png_bomb(width: int, height: int) -> bytes:
    """Return a small file that has all the black pixels of its large size."""
    packer = zlib.compressobj(9)
    piece = bytes(1 << 20)
    total = height * (1 + (width + 7) // 8)
    data = b"".join(packer.compress(piece[: min(len(piece), total - at)]) for at in range(0, total, len(piece)))
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    end = [png_chunk(b"IDAT", data + packer.flush()), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + b"".join(end)


def gif_file(width: int, height: int, count: int, frame: tuple[int, int, int, int] = (0, 0, 1, 1)) -> bytes:
    """Return a GIF of `count` frames of one pixel of data each; `frame` is their left, top, width and height."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    one = b"," + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x44\x01\0"
    return head + one * count + b";"


def webp_canvas(width: int, height: int) -> bytes:
    """Return an animated WebP file with a canvas of any size, and one small frame."""
    still = saved(Image.new("RGB", (2, 2)), "WEBP", lossless=True)[12:]
    size24 = [(value - 1).to_bytes(3, "little") for value in (width, height)]
    extended = b"\x02\0\0\0" + size24[0] + size24[1]
    frame = bytes(6) + (1).to_bytes(3, "little") * 2 + bytes(4) + still
    body = b"WEBP" + b"".join(
        name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)
        for name, data in ((b"VP8X", extended), (b"ANIM", bytes(6)), (b"ANMF", frame))
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg_with_exif(tiff: bytes) -> bytes:
    """Return a JPEG whose EXIF data is the given TIFF structure."""
    plain = saved(Image.fromarray(noise(8, 16)), "JPEG")
    data = b"Exif\0\0" + tiff
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data + plain[2:]


def exif_loop() -> bytes:
    """Return TIFF data whose directories point to each other, and to themselves."""
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8)  # the EXIF directory is this one
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 1) + entry + struct.pack("<I", 8)
