"""Cases of low-rank additions: ranks that differ, adapters that leave a product alone, rows without one."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

TOKENS = (1, 2, 7, 16, 17, 33, 121)
SHAPES = ((1, 1), (33, 7), (96, 96), (7, 320), (576, 65))  # out, in
RANKS = ((4,), (1, 8), (16, 0, 3), (5, 64, 2))  # of each adapter; 0: it has no matrices


def added(on: On, tokens: int, out: int, width: int, ranks: tuple[int, ...], which: str) -> Any:
    y, x = on.rows(tokens, out), on.rows(tokens, width)
    a = tuple(on.rows(rank, width, scale=width**-0.5) if rank else None for rank in ranks)
    b = tuple(on.rows(rank, out, scale=rank**-0.5) if rank else None for rank in ranks)
    chosen = on.random.integers(-1, len(ranks), tokens) if which == "mixed" else np.full(tokens, int(which))
    return ops.add_lora(y, x, on.ints(chosen), a, b)


def added_stacked(on: On, tokens: int, out: int, width: int, slots: int, rank: int, which: str) -> Any:
    """The matrices of all adapters in one tensor; in the first slot only half of the rows are used."""
    y, x = on.rows(tokens, out), on.rows(tokens, width)
    a, b = on.values(slots, rank, width, scale=width**-0.5), on.values(slots, rank, out, scale=rank**-0.5)
    a[0, rank // 2 :] = b[0, rank // 2 :] = 0
    chosen = on.random.integers(-1, slots, tokens) if which == "mixed" else np.full(tokens, int(which))
    return ops.add_lora(y, x, on.ints(chosen), on.tensor(a), on.tensor(b))


def cases() -> Iterator[Case]:
    for tokens in TOKENS:
        for out, width in SHAPES:
            for ranks in RANKS:
                name = f"{ranks} {out}x{width} x{tokens}"
                yield case("add_lora", name, added, tokens, out, width, ranks, "mixed", common=tokens in (1, 7, 33))
    for which in ("0", "2"):
        yield case("add_lora", f"all rows of {which}", added, 7, 96, 96, (16, 0, 3), which)
    yield case("add_lora", "no row", added, 7, 96, 96, (16, 0, 3), "-1", exact=True)
    yield case("add_lora", "an adapter without matrices", added, 7, 96, 96, (16, 0, 3), "1", exact=True)
    for tokens in TOKENS:
        for out, width in SHAPES[1:]:
            for slots, rank in ((1, 8), (4, 16), (16, 4)):
                name = f"{slots} slots of rank {rank} {out}x{width} x{tokens}"
                common = tokens in (1, 33)
                yield case("add_lora", name, added_stacked, tokens, out, width, slots, rank, "mixed", common=common)
    yield case("add_lora", "no row has a slot", added_stacked, 7, 96, 96, 4, 8, "-1", exact=True)
