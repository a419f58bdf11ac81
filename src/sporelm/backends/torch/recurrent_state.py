"""The recurrent state of a step's sequences, in torch.

`starts`, `lengths` and `states` are numpy arrays: a step has few sequences.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def each_sequence(state: Tensor, starts: Any, lengths: Any, states: Any) -> Iterator[tuple[Tensor, int, int]]:
    """Yield each sequence that has rows: a view of its state, zeroed if the sequence begins, and its first and last
    row."""
    first, held = starts.tolist(), lengths.tolist()
    for number, slot in enumerate(states.tolist()):
        start, stop = first[number], first[number + 1]
        if start < stop:
            if held[number] == stop - start:
                state[slot] = 0
            yield state[slot], start, stop
