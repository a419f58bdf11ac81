"""Finds PNG files whose compressed pixels end before the last row: Pillow leaves such rows black, without an error."""

import zlib

_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type (PNG, third edition, section 11.2.1)
_PIECE_BYTES = 1 << 20


def has_all_rows(data: bytes) -> bool:
    """Whether the pixels of a PNG file decompress to as many bytes as its header says (PNG, third edition, sections
    7.2 and 8.1). Decompressed bytes are counted and discarded."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    channels = _CHANNELS.get(data[25]) if len(data) > 28 and data[12:16] == b"IHDR" else None
    if channels is None:
        return False
    bits = data[24] * channels
    missing = _count_bytes(width, height, bits)
    if data[28]:
        sizes = (((width - x + dx - 1) // dx, (height - y + dy - 1) // dy) for x, y, dx, dy in _ADAM7)
        missing = sum(_count_bytes(columns, rows, bits) for columns, rows in sizes)
    stream = zlib.decompressobj()
    position = 8
    while missing > 0 and position + 8 <= len(data) and not stream.eof:
        length = int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] == b"IDAT":
            piece = data[position + 8 : position + 8 + length]
            while missing > 0 and piece and not stream.eof:
                missing -= len(stream.decompress(piece, _PIECE_BYTES))
                piece = stream.unconsumed_tail
        position += 12 + length
    return missing <= 0 or missing <= len(stream.flush())


def _count_bytes(columns: int, rows: int, bits: int) -> int:
    """Return the size in bytes of rows of pixels, each with its leading filter byte."""
    return rows * (1 + (columns * bits + 7) // 8) if columns > 0 and rows > 0 else 0
