"""What an answer must look like, as the engine sees it: which token may come next."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one answer. After an error nothing is allowed any more, and `failure` says why."""

    @property
    def failure(self) -> str | None:
        """Why the answer cannot go on."""

    @property
    def ended(self) -> bool:
        """Whether the answer is whole, and nothing but an end may follow."""

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [n]; those from n on may not."""

    def accept(self, token: int) -> None:
        """A token was said. Changes the state."""

    def forced(self) -> list[int]:
        """Tokens that must come next, whatever the model would say; [] where there is a choice. Changes nothing."""


class Constrained:
    """A constraint as an edit of logits: what is not allowed becomes impossible."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def apply(self, logits: NDArray[np.float32]) -> None:
        allowed = self.constraint.mask()[: len(logits)]
        np.copyto(logits[: len(allowed)], -np.inf, where=~allowed)
        logits[len(allowed) :] = -np.inf

    def accept(self, token: int) -> None:
        self.constraint.accept(token)
