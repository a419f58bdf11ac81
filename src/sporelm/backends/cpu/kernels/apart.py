"""What rows and keys make of the distance between them, gathered for a tile of rows and a page of keys."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i64
from sporelm.ops.attention import PAGE

# Numbers of rows and of keys, one line a token; bytes of a line, and of a head in it; the column of each distance,
# as bytes, the distance 0 at `columns`.
APART_FIELDS = " of_rows:p of_keys:p apart_stride:i apart_bytes:i columns:p"


def add_apart(
    k: Builder, f: Any, head: Val, begin: Val, page: tuple[Val, Val], rows: tuple[Val, Val], added: Val
) -> None:
    """Into `added`, f32 [rows][64]: the row's number for the distance and the key's, times the scale.

    begin   the first row of the text, among all tokens
    page    its first position, and how many of it are filled
    rows    the positions of the tile's first row, and past its last
    """
    (base, filled), (first, stop) = page, rows
    own_head = head * f.apart_bytes
    keys = k.at(f.of_keys, (begin + base) * f.apart_stride + own_head)
    with k.range(stop - first) as row:
        place = first + row
        own = k.at(f.of_rows, (begin + place) * f.apart_stride + own_head)
        columns = k.at(f.columns, (place - base) * 8)
        to = k.at(added, row * (4 * PAGE))
        with k.range(filled) as key:
            column = k.load(i64, columns, key * -8)
            found = k.load(f32, own, column) + k.load(f32, keys, key * f.apart_stride + column)
            k.store(found * f.scale, to, key * 4)
