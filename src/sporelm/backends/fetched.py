"""A copy on the host that is complete, for back-ends whose device is the host."""

from typing import NamedTuple

import numpy as np


class Fetched(NamedTuple):
    """A complete `Fetch`."""

    array: np.ndarray

    def result(self) -> np.ndarray:
        return self.array
