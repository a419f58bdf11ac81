"""What a case of the conformance check is, and the random values that it is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.backend import Backend

Run = Callable[[Backend], Any]


@dataclass(frozen=True)
class Case:
    """One op on one set of values; `run` gives its results, tensors or arrays, on a back-end."""

    op: str
    values: str  # which values, in words
    run: Run

    @property
    def name(self) -> str:
        return f"{self.op} {self.values}".strip()


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random values, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
