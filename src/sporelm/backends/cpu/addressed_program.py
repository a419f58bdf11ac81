"""A program whose inputs and outputs lie in the caller's memory, at addresses that each run gives.

Other frameworks own their tensors: their memory is read and written in place, without a copy to the program's arena.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.context import Context
from sporelm.backends.cpu.cpu_program import CpuProgram, derived_cells
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from sporelm.backends.protocol import Placement
from sporelm.ops import Graph, Value
from sporelm.tensor.tensor import Tensor

PLACEHOLDER = (
    1 << 62
)  # no address of a process; value n of the caller's has PLACEHOLDER + n * SPAN while it is compiled
SPAN = 1 << 44  # bytes: offsets from the beginning of a value are less


class AddressedProgram(CpuProgram):
    """A `CpuProgram` that reads its inputs and writes its outputs where the caller has them.

    Rows of float32 begin at multiples of 64 numbers (`tensor_storage.ROW_VALUES`), and memory is aligned to 4 bytes.
    """

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        compiler: Compiler,
        thread_pool: ThreadPool,
        context: Context,
        arena: Region,
        caches: Sequence[Tensor] = (),
    ) -> None:
        """`caches` are constants of the graph that stand for pages in the caller's memory."""
        given = [*graph.inputs.values(), *graph.outputs.values(), *caches]
        self._numbers = {id(value): number for number, value in enumerate(given)}
        super().__init__(graph, placement, compiler, thread_pool, context, arena)
        self._patches = [patch for region in self._own if (patch := _find_placeholders(region)) is not None]
        self._last_extents: dict[str, int] | None = None
        self._derived: list[tuple[int, str]] = []

    def address(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        return super().address(value) if number is None else PLACEHOLDER + number * SPAN

    def _array(self, value: Value) -> np.ndarray:
        return np.zeros(0, np.uint8)  # inputs and outputs are the caller's

    def run_at(
        self, addresses: Sequence[int], extents: Mapping[str, int], sequences: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Run a step. The caller keeps the memory alive, and guarantees its sizes and the indices in it.

        addresses   of the graph's inputs, then its outputs and then its caches, in their order
        sequences   the inputs among them that say where sequences begin and how long they are, as arrays
        """
        if not self.bound:
            self.refuse()
        bases = np.array(addresses, np.int64)
        for words, places, numbers, offsets in self._patches:
            words[places] = bases[numbers] + offsets
        if extents != self._last_extents:
            self._derived = self._cells.set_extents(extents)
            self._last_extents = dict(extents)
        for number, pair in enumerate(self._host):
            starts, lengths = (None if each is None else (sequences or {})[each] for each in pair)
            assert starts is not None
            cells = derived_cells(starts, lengths)
            for index, name in self._derived:
                if name.endswith(f" {number}"):
                    self._cells.words[index] = cells[name.removesuffix(f" {number}")]
        self.thread_pool.run(self._table)


Patch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _find_placeholders(region: Region) -> Patch | None:
    """Return the words of a region that are placeholders: the words, their places, numbers of values and offsets."""
    words = region.array[: region.array.size // 8 * 8].view(np.int64)
    places = np.flatnonzero(words >= PLACEHOLDER)
    if not len(places):
        return None
    numbers, offsets = np.divmod(words[places] - PLACEHOLDER, SPAN)
    return words, places, numbers, offsets
