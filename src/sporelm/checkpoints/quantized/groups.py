"""Division of column groups that share a scale into blocks; groups that cannot be divided are stored as F32."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError

BLOCKS = (128, 64, 32)  # columns of a block, in all formats of assembled weights
WIDENED = "stored as F32, 4 bytes a value"


class ColumnBlocks(NamedTuple):
    """Blocks of `size` columns and the group of each block, int [in / size]. Size 1 means that there are no blocks."""

    size: int
    group: NDArray[np.intp]


def cut_blocks(group_of: NDArray[np.integer]) -> ColumnBlocks:
    """Return the largest blocks whose columns belong to one group.

    group_of   the group of each column, int [in]
    """
    for size in BLOCKS:
        if len(group_of) % size == 0:
            runs = group_of.reshape(-1, size)
            if (runs == runs[:, :1]).all():
                return ColumnBlocks(size, runs[:, 0].astype(np.intp))
    return ColumnBlocks(1, group_of.astype(np.intp))


def sort_columns_by_group(group_of: NDArray[np.integer]) -> NDArray[np.int32] | None:
    """Return an order of columns that makes groups contiguous, int32 [in]; None if they can be divided as they are.

    With act-order, GPTQ quantizes columns in descending order of importance and forms groups in that order.
    """
    return None if cut_blocks(group_of).size > 1 else np.argsort(group_of, kind="stable").astype(np.int32)


def assign_groups(width: int, size: int) -> NDArray[np.intp]:
    """Return the group of each of `width` columns, `size` consecutive ones in each; -1: all columns in one."""
    return np.arange(width) // (size if size > 0 else max(1, width))


def check_group_count(width: int, size: int, count: int, where: str) -> NDArray[np.intp]:
    """Return `assign_groups`. Raises ModelFileError unless there are `count` groups.

    where   beginning of the message
    """
    found = assign_groups(width, size)
    needed = int(found[-1]) + 1 if width else count
    if needed != count:
        raise ModelFileError(f"{where} has {count} groups; {width} columns in groups of {size} need {needed}")
    return found


def count_notes(notes: Sequence[str], kind: str) -> list[str]:
    """Return each note once, with the number of its occurrences; empty notes are dropped.

    kind   that the notes are about: "weight", "tensor"
    """
    counts: dict[str, int] = {}
    for note in notes:
        counts[note] = counts.get(note, 0) + 1
    return [f"{count} {kind}{'s' if count > 1 else ''}: {note}" for note, count in counts.items() if note]
