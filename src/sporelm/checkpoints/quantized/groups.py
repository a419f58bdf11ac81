"""Into which blocks the groups of columns that share a scale can be cut, and what cannot be cut is widened."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError

BLOCKS = (128, 64, 32)  # columns of a block, of every format that is made here
WIDENED = "held as F32, 4 bytes a weight"


class ColumnBlocks(NamedTuple):
    """Blocks of `size` columns, and the group that each of them belongs to: int [in / size]. A size of 1: no blocks."""

    size: int
    group: NDArray[np.intp]


def cut(group_of: NDArray[np.integer]) -> ColumnBlocks:
    """The largest blocks of columns of one group; `group_of` is the group of each column, int [in]."""
    for size in BLOCKS:
        if len(group_of) % size == 0:
            runs = group_of.reshape(-1, size)
            if (runs == runs[:, :1]).all():
                return ColumnBlocks(size, runs[:, 0].astype(np.intp))
    return ColumnBlocks(1, group_of.astype(np.intp))


def sorted_groups(group_of: NDArray[np.integer]) -> NDArray[np.int32] | None:
    """An order of columns in which those of a group follow each other, int32 [in]; None if they can be cut as they are.

    With act-order GPTQ quantizes columns from the most important on, and groups are made in that order.
    """
    return None if cut(group_of).size > 1 else np.argsort(group_of, kind="stable").astype(np.int32)


def even_groups(width: int, size: int) -> NDArray[np.intp]:
    """The group of each of `width` columns where `size` after each other belong together; -1: all of them."""
    return np.arange(width) // (size if size > 0 else max(1, width))


def counted_groups(width: int, size: int, count: int, where: str) -> NDArray[np.intp]:
    """`even_groups`, of which `count` are wanted. Raises ModelFileError, its message begun by `where`, for others."""
    found = even_groups(width, size)
    needed = int(found[-1]) + 1 if width else count
    if needed != count:
        raise ModelFileError(f"{where} has {count} groups; {width} columns in groups of {size} are {needed}")
    return found


def repeated(notes: Sequence[str], what: str) -> list[str]:
    """Each note once, with the number of weights or tensors (`what`) that it is about; empty ones are none."""
    counts: dict[str, int] = {}
    for note in notes:
        counts[note] = counts.get(note, 0) + 1
    return [f"{count} {what}{'s' if count > 1 else ''}: {note}" for note, count in counts.items() if note]
