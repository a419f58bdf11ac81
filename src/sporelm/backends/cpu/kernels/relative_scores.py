"""Relative position scores of disentangled attention, gathered for a tile of rows and a page of keys."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i64
from sporelm.ops.paged_attention import PAGE

# Scores of rows and of keys, one line per token; bytes of a line, and of a head in it; the column of each distance, as
# bytes, the distance 0 at `columns`.
RELATIVE_FIELDS = " row_scores:p key_scores:p apart_stride:i apart_bytes:i columns:p"


def gather_relative_scores(
    k: Builder, f: Any, head: Val, begin: Val, page: tuple[Val, Val], rows: tuple[Val, Val], added: Val
) -> None:
    """Write to `added`, f32 [rows][64], the row's score for the distance plus the key's, times the scale.

    begin   the first row of the text, among all tokens
    page    its first position, and its number of filled positions
    rows    the positions of the tile's first row, and past its last
    """
    (base, filled), (first, stop) = page, rows
    own_head = head * f.apart_bytes
    keys = k.at(f.key_scores, (begin + base) * f.apart_stride + own_head)
    with k.range(stop - first) as row:
        place = first + row
        own = k.at(f.row_scores, (begin + place) * f.apart_stride + own_head)
        columns = k.at(f.columns, (place - base) * 8)
        to = k.at(added, row * (4 * PAGE))
        with k.range(filled) as key:
            column = k.load(i64, columns, key * -8)
            found = k.load(f32, own, column) + k.load(f32, keys, key * f.apart_stride + column)
            k.store(found * f.scale, to, key * 4)
