"""Launches of kernels: prepared once, their sizes and numbers taken from each step's extents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.opencl.kernel_program import KernelProgram
from sporelm.errors import OpError
from sporelm.ops import Symbol
from sporelm.ops.spec import Extent

Extents = Mapping[str, int]
MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True)
class ScaledExtent:
    """A number that follows from an extent: the extent divided by `divisor`, rounded up, times `factor`."""

    extent: Extent
    factor: int = 1
    divisor: int = 1

    def value(self, extents: Extents) -> int:
        return -(-extent_of(self.extent, extents) // self.divisor) * self.factor


Size = int | ScaledExtent | Callable[[Extents], int]


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel with its arguments.

    arguments  buffers, numbers of numpy, None (a null buffer), or a `ScaledExtent` for an int32 of the step
    sizes      work-items in each dimension; the first is rounded up to whole groups
    group      work-items of a group in each dimension
    condition  whether a step of these extents launches it; None: always
    """

    program: KernelProgram
    name: str
    arguments: Sequence[Any]
    sizes: Sequence[Size]
    group: Sequence[int]
    condition: Callable[[Extents], bool] | None = None


def extent_of(extent: Extent, extents: Extents) -> int:
    """Return an extent in a step."""
    return extents[extent.name] if isinstance(extent, Symbol) else extent


def size_of(size: Size, extents: Extents) -> int:
    """Return a size in a step."""
    if isinstance(size, int):
        return size
    return size.value(extents) if isinstance(size, ScaledExtent) else size(extents)


def compute_global_size(launch: KernelLaunch, extents: Extents) -> tuple[int, ...]:
    """Return the global size of a launch in a step; empty if there is nothing to do."""
    sizes = [size_of(size, extents) for size in launch.sizes]
    if 0 in sizes:
        return ()
    return tuple(-(-size // group) * group for size, group in zip(sizes, launch.group, strict=True))


class PreparedLaunch:
    """A kernel object whose constant arguments are set."""

    def __init__(self, launch: KernelLaunch, kernel: Any) -> None:
        self.launch, self.kernel = launch, kernel
        self.group = tuple(launch.group)
        self._varying: list[tuple[int, ScaledExtent]] = []
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, ScaledExtent):
                self._varying.append((index, argument))
                kernel.set_arg(index, np.int32(0))  # until `bind`: a dummy launch needs a value
            else:
                kernel.set_arg(index, argument)

    def bind(self, extents: Extents) -> tuple[int, ...]:
        """Set the numbers of a step, and return its global size; empty if there is nothing to do."""
        sizes = compute_global_size(self.launch, extents)
        if not sizes:
            return ()
        for index, amount in self._varying:
            number = amount.value(extents)
            if number > MAX_INT32:
                raise OpError(
                    f"{self.launch.name}: a step has too many numbers (got {number}; allowed {MAX_INT32}). Lower the "
                    "option max_context."
                )
            self.kernel.set_arg(index, np.int32(number))
        return sizes
