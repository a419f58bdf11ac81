"""The output rows of a step and its sampled tokens, on the device until they are read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Handle


class ModelOutput:
    """The greatest logit and all logits of each output row.

    The handles are arrays on the host, or belong to `backend`, which copies what is read. Arrays of the host are views
    that the next step overwrites.
    """

    def __init__(self, argmax: Handle, logits: Handle, backend: Any = None, num_rows: int | None = None) -> None:
        """`num_rows`: the rows that count, if padding follows them."""
        self.argmax_handle, self.logits_handle, self.backend, self.num_rows = argmax, logits, backend, num_rows
        self._argmax: NDArray[np.int32] | None = None
        self._logits: NDArray[np.float32] | None = None

    @property
    def argmax(self) -> NDArray[np.int32]:
        """The id of each row's greatest logit, -1 for a row with NaN: int32 [rows]. Waits for the device."""
        if self._argmax is None:
            self._argmax = self._fetch(self.argmax_handle)
        return self._argmax

    @property
    def logits(self) -> NDArray[np.float32]:
        """All logits: float32 [rows, vocab]. Waits for the device, and copies all of them."""
        if self._logits is None:
            self._logits = self._fetch(self.logits_handle)
        return self._logits

    def read_candidates(self, count: int) -> None:
        """Read the `count` greatest logits of each row, at least: until the next step `logits` has these, and either
        the true values of the others or -inf. Waits for the device."""
        _ = self.logits

    def rows(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return copies of the logits of some rows: float32 [len(numbers), vocab]."""
        if self.backend is None:
            return self.logits_handle[list(numbers)]
        return self.backend.fetch_rows(self.logits_handle, numbers)

    def _fetch(self, handle: Handle) -> NDArray[Any]:
        if self.num_rows is not None:
            handle = handle[: self.num_rows]
        return handle if self.backend is None else self.backend.fetch(handle)


class PreviousTokens(NamedTuple):
    """The tokens that the step in flight samples: a handle of int32 [rows], and the row of each request, by its id."""

    handle: Handle
    rows: Mapping[int, int]
