"""The constraint of an answer, as the engine sees it: the set of tokens that may come next."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]

# Upper bounds of eight logits for eight bits of a mask: [256, 8].
_BOUNDS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.inf, -np.inf).astype(np.float32)


class Constraint(Protocol):
    """The state of one answer. After an error no token is allowed, and `failure` has the reason."""

    @property
    def failure(self) -> str | None:
        """Why the answer cannot go on."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, and only an end may follow."""

    def allows(self, token: int) -> bool:
        """Return whether a token may come next. Changes nothing."""

    def words(self) -> Words:
        """Return the tokens that may come next: int32 [n], bit b of word w for token 32 * w + b; none from 32 * n on.

        Valid until the next call. Changes nothing.
        """

    def accept(self, token: int) -> None:
        """Advance by a token. Changes the state."""

    def forced(self) -> list[int]:
        """Return tokens that must come next, whatever the logits are; [] where there is a choice. Changes nothing."""


@runtime_checkable
class BatchedConstraint(Protocol):
    """An optional part of a constraint: the masks of several constraints of its kind, computed together."""

    @classmethod
    def fill_words(cls, constraints: Sequence[Any], words: Words) -> None:
        """Write `words()` of each constraint to a row of `words`, int32 [constraints, n]."""


def collect_words(constraints: Sequence[Constraint], num_words: int) -> Words:
    """Return the tokens that may come next of each constraint: int32 [constraints, num_words], bits as in `words`."""
    found = np.zeros((len(constraints), num_words), np.int32)
    kinds: dict[type, list[int]] = {}
    for at, constraint in enumerate(constraints):
        kinds.setdefault(type(constraint), []).append(at)
    for kind, places in kinds.items():
        if len(places) > 1 and issubclass(kind, BatchedConstraint):
            part = np.zeros((len(places), num_words), np.int32)
            kind.fill_words([constraints[at] for at in places], part)
            found[places] = part
            continue
        for at in places:
            words = constraints[at].words()[:num_words]
            found[at, : len(words)] = words
    return found


class ConstraintProcessor:
    """A constraint as a logits processor: tokens that are not allowed get -inf."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def apply(self, logits: NDArray[np.float32]) -> None:
        mask_row(logits, self.constraint.words())

    def accept(self, token: int) -> None:
        self.constraint.accept(token)


def mask_row(logits: NDArray[np.float32], words: Words) -> None:
    """Set logits [vocab] to -inf whose bit is not set in `words`, or is past its end. Changes `logits`.

    The minimum of each logit and its bound takes a fifth of the time of a boolean mask.
    """
    bits = words.view(np.uint8) if np.little_endian else words.astype("<i4").view(np.uint8)
    bounds = _BOUNDS.take(bits, axis=0).reshape(-1)[: len(logits)]
    within = logits[: len(bounds)]
    np.minimum(within, bounds, out=within)
    logits[len(bounds) :] = -np.inf
