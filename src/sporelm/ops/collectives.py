"""Collectives: ops in which all ranks of a group take part, each with its own values.

Every rank of a group calls the same collectives in the same order. The references exchange whole arrays through the
group, which is any `RankGroup`; a back-end may have kernels for the kinds of groups that it knows.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sporelm.ops.argument_checks import check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32, I32, DType

Ranges = tuple[tuple[int, int], ...]  # (start, stop) of each rank


class RankGroup(Protocol):
    """The ranks that compute together, as one of them sees the others. Hashable by identity."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_on_device(self) -> bool:
        """Whether values of a device are added without passing through the host's memory."""

    def all_gather(self, array: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return the arrays of all ranks, in rank order. `shapes` are theirs; all have one dtype.

        Raises RankLost if another rank has failed or was aborted.
        """

    def send(self, array: np.ndarray, target: int) -> None:
        """Give an array to another rank, which calls `receive`."""

    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int) -> np.ndarray:
        """Return the next array from another rank. Raises RankLost like `all_gather`."""


def _check_ranges(x: Any, group: RankGroup, ranges: Ranges) -> Spec:
    given = check_rows("x", x)
    require(len(ranges) == group.size, f"ranges {ranges} must have one element a rank: {group.size}")
    start, stop = ranges[group.rank]
    width = require_fixed(given.shape[1])
    require(width == stop - start, f"x {given} must have the columns {start} to {stop} of rank {group.rank}")
    return given


def _all_reduce_spec(x: Any, *, group: RankGroup) -> Spec:
    return check_rows("x", x)


def _all_gather_spec(x: Any, *, group: RankGroup, ranges: Ranges) -> Spec:
    given = _check_ranges(x, group, ranges)
    return Spec((given.shape[0], max(stop for _, stop in ranges)), F32)


def _argmax_shards_spec(logits: Any, *, group: RankGroup, ranges: Ranges) -> Spec:
    return Spec((_check_ranges(logits, group, ranges).shape[0],), I32)


def _send_spec(x: Any, *, group: RankGroup, target: int) -> tuple[Spec, ...]:
    require(isinstance(spec_of(x).dtype, DType), f"x {spec_of(x)} must be plain numbers")
    require(0 <= target < group.size and target != group.rank, f"target {target} must be another rank of {group.size}")
    return ()


def _receive_spec(like: Any, *, group: RankGroup, source: int, row_shape: tuple[int, ...], dtype: DType = F32) -> Spec:
    require(0 <= source < group.size and source != group.rank, f"source {source} must be another rank of {group.size}")
    require(all(length > 0 for length in row_shape), f"row_shape {row_shape} must be positive lengths")
    return Spec((spec_of(like).shape[0], *row_shape), dtype)


@op(_all_reduce_spec)
def all_reduce(x, *, group):  # x [tokens, width]
    """Return the sum of the x of all ranks, added in rank order: bitwise the same on each of them."""
    parts = group.all_gather(x, [x.shape] * group.size)
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


@op(_all_gather_spec)
def all_gather(x, *, group, ranges):  # x [tokens, columns of this rank] -> [tokens, all columns]
    """Return the columns of all ranks. `ranges` has the (start, stop) of each; of columns that several ranks hold, the
    lowest rank's are taken."""
    parts = group.all_gather(x, [(len(x), stop - start) for start, stop in ranges])
    result = np.empty((len(x), max(stop for _, stop in ranges)), x.dtype)
    for (start, stop), part in zip(reversed(ranges), reversed(parts), strict=True):
        result[:, start:stop] = part
    return result


@op(_argmax_shards_spec)
def argmax_shards(logits, *, group, ranges):  # logits [outputs, columns of this rank]
    """Return the id of each row's greatest logit over all ranks, the lowest id among equals; -1 for a row with NaN.

    `ranges` has the ids of each rank. Only the best candidate of each rank is exchanged.
    """
    best = np.zeros((len(logits), 2), np.float32)
    ids = logits.argmax(axis=-1).astype(np.int32)
    best[:, 0] = np.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    best[:, 1] = (ids + ranges[group.rank][0]).astype(np.int32).view(np.float32)
    best[np.isnan(logits).any(axis=-1), 0] = np.nan
    parts = np.stack(group.all_gather(best, [best.shape] * group.size))  # [ranks, outputs, 2]
    values, found = parts[..., 0], np.ascontiguousarray(parts[..., 1]).view(np.int32)
    winner = values.argmax(axis=0)  # the lowest rank among equals
    result = np.take_along_axis(found, winner[None], axis=0)[0]
    return np.where(np.isnan(values).any(axis=0), -1, result).astype(np.int32)


@op(_send_spec)
def send(x, *, group, target):
    """Give x to another rank, where `receive` returns it."""
    group.send(x, target)
    return ()


@op(_receive_spec)
def receive(like, *, group, source, row_shape, dtype=F32):  # like [tokens, ...] -> [tokens, *row_shape]
    """Return the x that another rank sends, with as many rows as `like`."""
    return group.receive((len(like), *row_shape), np.dtype(dtype.numpy), source)
