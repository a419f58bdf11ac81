"""Cases of Mamba 1's selective scan, and of Griffin's gated unit."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.evals.conformance.recurrent import ROWS, stepped


def selected(on: On, size: int, channels: int, pooled: bool) -> Any:
    x, dt, write, read = (on.rows(ROWS, n) for n in (channels, channels, size, size))
    decay, skip = on.tensor(-np.exp(on.values(size, channels))), on.tensor(on.values(channels))
    return stepped(
        on, (size, channels), lambda *held: ops.selective_scan(x, dt, write, read, decay, skip, *held), pooled
    )


def gated_unit(on: On, heads: int, width: int, pooled: bool) -> Any:
    parts = [on.rows(ROWS, heads * width) for _ in range(3)]
    vectors = on.tensor(on.values(heads * width)), *(on.tensor(on.values(heads, width)) for _ in range(2))
    return stepped(on, (heads, width), lambda *held: ops.gated_lru(*parts, *vectors, *held), pooled)


def cases() -> Iterator[Case]:
    for pooled in (False, True):
        for size, channels in ((16, 128), (5, 70), (1, 3)):
            name, rare = f"{size} of {channels}{' in a pool' * pooled}", pooled and size != 5
            yield case("selective_scan", name, selected, size, channels, pooled, rare=rare, common=size != 1)
        for heads, width in ((2, 64), (3, 10), (1, 1)):
            name, rare = f"{heads} of {width}{' in a pool' * pooled}", pooled and heads != 3
            yield case("gated_lru", name, gated_unit, heads, width, pooled, rare=rare, common=heads != 1)
