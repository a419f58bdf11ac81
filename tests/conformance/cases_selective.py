"""Cases of Mamba 1's selective scan."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.case import Case, On, case
from conformance.cases_recurrent import ROWS, stepped
from sporelm import ops


def selected(on: On, size: int, channels: int, pooled: bool) -> Any:
    x, dt, write, read = (on.rows(ROWS, n) for n in (channels, channels, size, size))
    decay, skip = on.tensor(-np.exp(on.values(size, channels))), on.tensor(on.values(channels))
    return stepped(
        on, (size, channels), lambda *held: ops.selective_scan(x, dt, write, read, decay, skip, *held), pooled
    )


def cases() -> Iterator[Case]:
    for pooled in (False, True):
        for size, channels in ((16, 128), (5, 70), (1, 3)):
            name, rare = f"{size} of {channels}{' in a pool' * pooled}", pooled and size != 5
            yield case("selective_scan", name, selected, size, channels, pooled, rare=rare, common=size != 1)
