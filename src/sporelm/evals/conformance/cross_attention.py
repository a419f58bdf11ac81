"""Cases of attention of rows to spans of keys."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

HEADS = (
    (64, 1, 3),
    (2, 1, 3),
    (26, 3, 2),
    (16, 7, 1),
    (72, 1, 2),
    (80, 2, 2),
    (128, 4, 1),
)  # head_dim, group, kv heads
# (rows, first key, last key + 1) of each run of rows: a tile of rows and a block of keys with and without a rest
RUNS = {
    "one key": ((1, 0, 1),),
    "a whole picture": ((37, 0, 37),),
    "a piece of a picture": ((33, 0, 290),),
    "windows": ((16, 0, 16), (16, 16, 32), (16, 32, 48), (9, 48, 57)),
    "tiles of pictures": ((130, 0, 97), (128, 97, 290), (1, 290, 291)),
    "learned queries": ((8, 3, 100), (8, 100, 213)),
    "rows of their own": tuple((1, max(0, row - 2), row + 3) for row in range(20)),
    "spans of one begin": ((3, 5, 17), (2, 5, 101), (4, 6, 7)),
}


def attended(on: On, heads: tuple[int, int, int], runs: tuple[tuple[int, int, int], ...], gain: float) -> Any:
    head_dim, group, kv_heads = heads
    keys, narrow = max(stop for _, _, stop in runs) + 2, head_dim * kv_heads
    spans = np.concatenate([np.tile(span, (rows, 1)) for rows, *span in runs])
    given = (on.rows(len(spans), narrow * group, scale=gain), on.rows(keys, narrow), on.rows(keys, narrow))
    return ops.cross_attention(*given, on.ints(spans), head_dim=head_dim, scale=head_dim**-0.5)


def cases() -> Iterator[Case]:
    for heads in HEADS:
        for name, runs in RUNS.items():
            marks = {"common": heads in HEADS[:3], "rare": heads in HEADS[3:4]}
            yield case("cross_attention", f"{heads} {name}", attended, heads, runs, 1.0, **marks)
    for gain in (0.0, 8.0):
        for name in ("tiles of pictures", "windows"):
            title = f"{HEADS[0]} {name} queries of {gain:g}"
            yield case("cross_attention", title, attended, HEADS[0], RUNS[name], gain)
