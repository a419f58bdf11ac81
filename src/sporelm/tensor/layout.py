"""Layouts: shape, strides and offset of a tensor, counted in elements.

Each transform returns a new layout of the same elements, without a copy. Strides may be negative (reversed axes)
or zero (broadcast axes). Axes are counted from 0; negative axes are errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from sporelm.errors import OpError


@dataclass(frozen=True)
class Layout:
    """Element (i0, i1, ...) lies at `offset + i0 * strides[0] + i1 * strides[1] + ...`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise OpError(f"layout of {len(self.shape)} axes has {len(self.strides)} strides")
        if any(length < 0 for length in self.shape):
            raise OpError(f"layout shape {list(self.shape)} has a negative length")

    @staticmethod
    def contiguous(shape: Sequence[int]) -> "Layout":
        """Return the row-major layout of `shape`: the last axis has stride 1."""
        steps = accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1) if len(shape) else ()
        return Layout(tuple(shape), tuple(steps)[::-1])

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in row-major order."""
        return self._packed(zip(self.shape[::-1], self.strides[::-1], strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a range of memory without gaps or repeats, in any order of axes."""
        return self._packed(sorted(zip(self.shape, map(abs, self.strides), strict=True), key=lambda axis: axis[1]))

    def _packed(self, axes: "Sequence[tuple[int, int]] | zip[tuple[int, int]]") -> bool:
        """Whether (length, stride) pairs, innermost first, are each a whole step of those before."""
        expected = 1
        for length, stride in axes:
            if length != 1 and stride != expected and self.size:
                return False
            expected *= length
        return True

    def transpose(self, perm: Sequence[int]) -> "Layout":
        """Reorder axes: the listed axes, in the order given, take the places that those axes have now.

        `perm` may list a subset: axes not listed stay where they are.
        """
        for axis in perm:
            self._check_axis(axis)
        if len(set(perm)) != len(perm):
            raise OpError(f"transpose {list(perm)} lists an axis twice")
        order = list(range(self.rank))
        for place, axis in zip(sorted(perm), perm, strict=True):
            order[place] = axis
        return Layout(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def index(self, axis: int, i: int) -> "Layout":
        """Select position i of `axis` and drop the axis."""
        length, stride = self._axis(axis)
        if not 0 <= i < length:
            raise OpError(f"index {i} is outside axis {axis} of length {length}")
        return self._replace_axis(axis, (), (), self.offset + i * stride)

    def slice(self, axis: int, start: int, step: int, length: int) -> "Layout":
        """Keep `length` positions of `axis`: start, start + step, ...; a step may be negative or zero."""
        whole, stride = self._axis(axis)
        last = start + step * (length - 1)
        inside = 0 <= start < whole and 0 <= last < whole if length > 0 else 0 <= start <= whole
        if length < 0 or not inside:
            raise OpError(f"slice from {start}, step {step}, length {length} leaves axis {axis} of length {whole}")
        return self._replace_axis(axis, (length,), (stride * step,), self.offset + start * stride)

    def tile_be(self, axis: int, parts: Sequence[int]) -> "Layout":
        """Split `axis` into axes of the lengths `parts`, the last one varying fastest (torch.unflatten)."""
        length, stride = self._axis(axis)
        self._check_parts(axis, length, parts)
        inner = accumulate(reversed(parts[1:]), lambda a, b: a * b, initial=1)
        return self._replace_axis(axis, tuple(parts), tuple(stride * step for step in inner)[::-1], self.offset)

    def tile_le(self, axis: int, parts: Sequence[int]) -> "Layout":
        """Split `axis` into axes of the lengths `parts`, the first one varying fastest."""
        length, stride = self._axis(axis)
        self._check_parts(axis, length, parts)
        inner = accumulate(parts[:-1], lambda a, b: a * b, initial=1)
        return self._replace_axis(axis, tuple(parts), tuple(stride * step for step in inner), self.offset)

    def broadcast(self, axis: int, times: int) -> "Layout":
        """Repeat an axis of length 1 `times` times, with stride 0 (torch.expand)."""
        length, _ = self._axis(axis)
        if length != 1 or times < 0:
            raise OpError(
                f"broadcast needs an axis of length 1 and times >= 0; axis {axis} has {length}, times is {times}"
            )
        return self._replace_axis(axis, (times,), (0,), self.offset)

    def merge(self, start: int, end: int) -> "Layout | None":
        """Merge the axes start to end - 1 into one, in row-major order; None if the strides do not allow it."""
        if not 0 <= start < end <= self.rank:
            raise OpError(f"merge of axes {start} to {end} is empty or leaves the {self.rank} axes")
        shape = self.shape[start:end]
        strides = self.strides[start:end]
        axes = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
        length = prod(shape)
        for (_, outer), (inner_length, inner) in pairwise(axes):
            if outer != inner * inner_length and length:
                return None
        stride = axes[-1][1] if axes else strides[-1]
        return Layout(
            (*self.shape[:start], length, *self.shape[end:]),
            (*self.strides[:start], stride, *self.strides[end:]),
            self.offset,
        )

    def split(self, axis: int, sizes: Sequence[int]) -> "tuple[Layout, ...]":
        """Split `axis` into consecutive ranges of these lengths, one layout each."""
        length, _ = self._axis(axis)
        if any(size < 0 for size in sizes) or sum(sizes) != length:
            raise OpError(f"split sizes {list(sizes)} do not add up to axis {axis} of length {length}")
        starts = accumulate(sizes, initial=0)
        return tuple(self.slice(axis, start, 1, size) for start, size in zip(starts, sizes, strict=False))

    def _check_axis(self, axis: int) -> None:
        if not 0 <= axis < self.rank:
            raise OpError(f"axis {axis} is not one of the {self.rank} axes of shape {list(self.shape)}")

    def _axis(self, axis: int) -> tuple[int, int]:
        self._check_axis(axis)
        return self.shape[axis], self.strides[axis]

    @staticmethod
    def _check_parts(axis: int, length: int, parts: Sequence[int]) -> None:
        if not parts or any(part < 0 for part in parts) or prod(parts) != length:
            raise OpError(f"tile {list(parts)} does not multiply to axis {axis} of length {length}")

    def _replace_axis(self, axis: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> "Layout":
        return Layout(
            self.shape[:axis] + shape + self.shape[axis + 1 :],
            self.strides[:axis] + strides + self.strides[axis + 1 :],
            offset,
        )
