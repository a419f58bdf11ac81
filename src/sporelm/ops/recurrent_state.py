"""State that ops carry from row to row of a sequence.

A state is float32 [slots, ...]. `states` gives the slot of each sequence of a step; the op leaves the state there for
the sequence's next step. Several sequences share a step: `starts` gives the rows of each. A sequence begins in this
step if it has as many rows as its length (`lengths`): it starts from zeros. Rows are processed one by one in one order,
so that results do not depend on how a sequence is split into steps.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_argument, check_ints, check_range, check_rows
from sporelm.ops.op import require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32

Vectors = NDArray[np.float32]


SEQUENCE_ARGUMENTS = ("starts", "lengths", "states")  # arguments that give the amount of work and the sequences


def check_state(x: Any, state: Any, starts: Any, lengths: Any, states: Any) -> tuple[Spec, Spec]:
    """Return the specs of x, float32 [tokens, width], and of a state, [slots, rows, width].

    Raises OpError if they, or the arguments that describe the sequences, do not fit.
    """
    given, held = check_rows("x", x), check_argument("state", state, F32, 3)
    check_ints("starts", starts)
    counts, slots = check_ints("lengths", lengths), check_ints("states", states)
    require(counts.shape == slots.shape, f"states {slots} must have one element an element of lengths {counts}")
    return given, held


def check_sequences(x: Any, state: Any, starts: Any, lengths: Any, states: Any) -> None:
    """Raise OpError for rows outside x, more rows than positions, slots outside the state, or a slot used twice."""
    first, held, slots = starts.numpy(), lengths.numpy(), states.numpy()
    counts = np.diff(first.astype(np.int64))
    ordered = len(first) == len(held) + 1 and first[0] == 0 and first[-1] == x.shape[0] and (counts >= 0).all()
    wanted = f"rise from 0 to the {x.shape[0]} rows of x in {len(held) + 1} elements"
    require(bool(ordered), f"starts {first.tolist()[:8]} must {wanted}")
    for index in np.flatnonzero(held < counts):
        raise OpError(f"lengths[{index}] is less than the sequence's rows in this step")
    check_range("states", slots, 0, state.shape[0])
    require(len({*slots.tolist()}) == len(slots), f"states {slots.tolist()[:8]} must be a slot of its own for each")


def each_sequence(state: Vectors, starts: Any, lengths: Any, states: Any) -> Iterator[tuple[Vectors, range]]:
    """Yield each sequence that has rows: a view of its state, zeroed if the sequence begins, and its row numbers."""
    for number, slot in enumerate(states):
        own = range(int(starts[number]), int(starts[number + 1]))
        if own:
            if lengths[number] == len(own):
                state[slot] = 0
            yield state[slot], own


def softplus(x: Vectors) -> Vectors:
    """Return log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def head_pairs(heads: int, shared: int, order: str) -> NDArray[np.int64]:
    """Return the shared head of each head. With "each" every shared head repeats for neighbours, with "all" the whole
    list repeats."""
    number = np.arange(heads)
    return number // (heads // shared) if order == "each" else number % shared
