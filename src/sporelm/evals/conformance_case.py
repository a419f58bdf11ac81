"""A case of the conformance check, and its random values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.protocol import Backend

RunCase = Callable[[Backend], Any]


@dataclass(frozen=True)
class ConformanceCase:
    """One op on one set of values; `run` gives its results, tensors or arrays, on a back-end."""

    op: str
    values: str  # which values, in words
    run: RunCase

    @property
    def name(self) -> str:
        return f"{self.op} {self.values}".strip()


def random_values(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random values, float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
