"""A copy on the host that is complete, for back-ends whose device is the host."""

from typing import NamedTuple, Self

import numpy as np

from sporelm.backends.context import Context


class Fetched(NamedTuple):
    """A complete `Fetch`. It is memory of the host, which every thread may read."""

    array: np.ndarray

    def result(self) -> np.ndarray:
        return self.array

    def sporulate(self) -> Self:
        return self

    def sprout(self, context: Context) -> Self:
        return self
