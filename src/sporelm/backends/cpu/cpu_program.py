"""A graph as a table of kernel calls: memory and addresses fixed once, then one native call a thread a step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sporelm.backends.context import Context, Resource
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.kernels import many_token_linear
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, TILE_TOKENS
from sporelm.backends.cpu.lowering.emitter import Cell, ChunkCount, Emitter, KernelEntry
from sporelm.backends.cpu.lowering.op_lowering import lower_call
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.step_loops import ENTRY
from sporelm.backends.cpu.runtime.tensor_storage import TensorStorage, value_bytes, view_array
from sporelm.backends.cpu.runtime.thread_pool import SCRATCH_BYTES, EntryTable, ThreadPool
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.protocol import Placement
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.errors import BackendError
from sporelm.ops import Call, Graph, Symbol, Value
from sporelm.ops.spec import Extent
from sporelm.tensor.dtype import DType

BLOCKS = " blocks"  # ends the name of a cell that counts blocks of tokens


class CellTable:
    """Numbers that kernels read at each step, each in its own i64."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, ChunkCount | None], int] = {}
        self._region = Region(4096)
        self.words = self._region.array.view(np.int64)
        self._updates: list[tuple[int, str, ChunkCount | None]] = []

    def address(self, cell: Cell) -> int:
        """Return the address of the cell's number."""
        if cell.address is not None:
            return cell.address
        key = (cell.name, cell.chunks)
        if key not in self._index:
            index = len(self._index)
            if index >= self.words.size:
                raise BackendError(f"a program reads more than {self.words.size} extents")
            self._index[key] = index
            if cell.constant is None:
                self._updates.append((index, *key))
            else:
                self.words[index] = _cell_number(cell.name, cell.constant, cell.chunks)
        return self._region.address + 8 * self._index[key]

    def set_extents(self, extents: Mapping[str, int]) -> list[tuple[int, str]]:
        """Set every cell that follows from the extents; return the others, by their index."""
        derived = []
        for index, name, chunks in self._updates:
            extent = extents.get(name, extents.get(name.removesuffix(BLOCKS)))
            if extent is None:
                derived.append((index, name))
            else:
                self.words[index] = _cell_number(name, extent, chunks)
        return derived


def _cell_number(name: str, extent: int, chunks: ChunkCount | None) -> int:
    """Return the number that a cell of this name has at an extent."""
    if chunks is not None:
        return chunks.of(extent)
    return -(-extent // many_token_linear.TOKENS_PER_BLOCK) if name.endswith(BLOCKS) else extent


def attention_cells(starts: np.ndarray, lengths: np.ndarray) -> dict[str, int]:
    """Return the cells that attention needs of a step's lengths.

    They are: the number of leading sequences with one row each (decoding), the number of splits of their positions, the
    number of splits to merge, and the number of tiles of the other sequences.
    """
    rows, sequences = starts.tolist(), len(lengths)
    if rows == list(range(sequences + 1)):
        decoding, tiles = sequences, 0
    else:
        decoding = next(number for number in range(sequences) if rows[number + 1] != number + 1)
        tiles = int((-(-np.diff(starts[decoding:]) // TILE_TOKENS)).sum())
    splits = -(-max(lengths[:decoding].tolist(), default=1) // SPLIT)
    return {
        "splits": splits,
        "sequences splits": decoding * splits,
        "tiles": tiles,
        "decoding": decoding,
        "merging": decoding if splits > 1 else 0,
    }


def derived_cells(starts: np.ndarray, lengths: np.ndarray | None) -> dict[str, int]:
    """Return the numbers that follow from a step's `starts`, and `lengths` where there is a cache."""
    if lengths is None:
        return {"text tiles": int((-(-np.diff(starts) // TILE_TOKENS)).sum())}
    return attention_cells(starts, lengths)


class StepBindings(NamedTuple):
    """State that steps with the same arrays and the same extents share."""

    arrays: Mapping[str, np.ndarray]
    extents: list[int]
    copies: list[tuple[str, np.ndarray, np.ndarray]]  # name, place and array of each input
    attended: list[tuple[np.ndarray, np.ndarray | None, list[tuple[int, str]]]]  # starts, lengths, dependent cells
    outputs: dict[str, np.ndarray]

    def is_of(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> bool:
        """Return whether a step uses the same arrays and extents."""
        return (
            self.arrays is arrays
            and self.extents == [*extents.values()]
            and all(arrays[name] is array for name, _, array in self.copies)
        )


class CpuProgram(Resource):
    """The program of one step bucket on the CPU.

    Positions, slots, rows, lengths and pages in a step's arrays are used without checks: the caller that fills the
    arrays (the runner) is responsible for them. Ids outside their table give NaN.
    """

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        compiler: Compiler,
        thread_pool: ThreadPool,
        context: Context,
        arena: Region | None = None,
    ) -> None:
        """`arena` has room for the values, between whose steps other programs may write to it; None: one of its own."""
        self.compiler = compiler  # keeps the machine code alive that the table points to
        self.graph, self.thread_pool, self.threads = graph, thread_pool, thread_pool.threads
        self.target: CpuTarget = compiler.target
        self._placement = placement
        self._arena = Region(placement.nbytes) if arena is None else arena
        self._own: list[Region] = []
        self._cells = CellTable()
        self._attended: list[tuple[Any, Any]] = []
        self._groups: dict[SharedMemoryGroup, np.ndarray] = {}  # and the memory at which the table points
        self._prepared: StepBindings | None = None
        emitter = Emitter(self)
        owners: list[Call] = []  # of entries
        for call in graph.calls:
            lower_call(emitter, call)
            owners += [call] * (len(emitter.entries) - len(owners))
        self.entries = emitter.entries
        self._table = assemble(self.entries, compiler, self._cells, self._own, thread_pool.threads)
        self._table.names = [(call, entry.kernel.name) for call, entry in zip(owners, self.entries, strict=True)]
        self._inputs = {name: self._array(value) for name, value in graph.inputs.items()}
        self._outputs = {name: (self._array(value), value.shape[0]) for name, value in graph.outputs.items()}
        names = {id(value): name for name, value in graph.inputs.items()}
        self._host = [
            tuple(None if v is None else names.get(id(v)) or v.numpy() for v in pair) for pair in self._attended
        ]
        super().__init__(context, f"program of {len(graph.calls)} calls")  # last: a failed one must not be a resource

    def address(self, value: Any) -> int:
        if isinstance(value, Value):
            return self._arena.address + self._placement.offsets[id(value)]
        storage: TensorStorage = value.storage
        return storage.address

    def reserve(self, nbytes: int) -> int:
        self._own.append(Region(nbytes))
        return self._own[-1].address

    def store_words(self, values: Sequence[int]) -> int:
        address = self.reserve(8 * len(values))
        self._own[-1].array.view(np.int64)[:] = values
        return address

    def register_sequences(self, starts: Any, lengths: Any) -> int:
        """Return the number of these two values among the cells of attention."""
        for number, pair in enumerate(self._attended):
            if pair[0] is starts and pair[1] is lengths:
                return number
        self._attended.append((starts, lengths))
        return len(self._attended) - 1

    def register_group(self, group: SharedMemoryGroup) -> None:
        self._groups[group] = group.memory

    def _array(self, value: Value) -> np.ndarray:
        assert isinstance(value.dtype, DType)
        start = self._placement.offsets[id(value)]
        memory = self._arena.array[start : start + value_bytes(value.spec)]
        return view_array(memory, value.spec.bound, value.dtype)

    def run(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        if not self.bound:
            self.refuse()
        step = self._prepared
        if step is None or not step.is_of(arrays, extents):
            step = self._prepared = self._prepare(arrays, extents)
        for _, place, array in step.copies:
            place[...] = array
        for starts, lengths, names in step.attended:
            cells = derived_cells(starts, lengths)
            for index, name in names:
                self._cells.words[index] = cells[name]
        for group in self._groups:
            group.check()
        self.thread_pool.run(self._table)
        for group in self._groups:
            group.check()  # kernels do not wait for the ranks of an aborted group, so that results are wrong
        return dict(step.outputs)

    def _prepare(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> StepBindings:
        """Prepare steps with these arrays, once. Set the cells of their extents."""
        copies = [(name, place[: len(arrays[name])], arrays[name]) for name, place in self._inputs.items()]
        attended, derived = [], self._cells.set_extents(extents)
        for number, pair in enumerate(self._host):
            starts, lengths = (arrays[given] if isinstance(given, str) else given for given in pair)
            assert starts is not None
            own = [(index, name.removesuffix(f" {number}")) for index, name in derived if name.endswith(f" {number}")]
            attended.append((starts, lengths, own))
        outputs = {name: array[: _extent_of(extent, extents)] for name, (array, extent) in self._outputs.items()}
        return StepBindings(arrays, [*extents.values()], copies, attended, outputs)

    def release(self) -> None:
        self._arena, self._own = Region(0), []
        self._table = EntryTable(np.zeros((0, ENTRY // 8), np.int64), self.threads)
        self._prepared = None
        self._groups.clear()
        self._inputs.clear()
        self._outputs.clear()


def _extent_of(extent: Extent, extents: Mapping[str, int]) -> int:
    return extents[extent.name] if isinstance(extent, Symbol) else extent


def assemble(
    entries: Sequence[KernelEntry], compiler: Compiler, cells: CellTable, own: list[Region], threads: int
) -> EntryTable:
    """Convert entries and their descriptors to native form; `own` keeps the descriptors alive."""
    table = np.zeros((len(entries), ENTRY // 8), np.int64)
    descriptors = Region(8 * sum(max(1, len(entry.kernel.fields)) for entry in entries))
    own.append(descriptors)
    words = descriptors.array.view(np.int64)
    at = 0
    always = Cell("0", 0)
    for index, entry in enumerate(entries):
        if entry.kernel.scratch > SCRATCH_BYTES:
            raise BackendError(
                f"{entry.kernel.name} needs {entry.kernel.scratch} bytes of scratch, there are {SCRATCH_BYTES}"
            )
        guard, low, high = entry.guard or (always, 0, 0)
        count = cells.address(entry.count)
        table[index] = (
            compiler.address(entry.kernel), descriptors.address + 8 * at, count, entry.factor, entry.grain,
            0, cells.address(guard), low, high, 0,
        )  # fmt: skip
        for name, kind in entry.kernel.fields:
            words[at] = _descriptor_word(entry.fields[name], kind, cells)
            at += 1
        at += not entry.kernel.fields
    _chain_entries(entries, table)
    return EntryTable(table, threads)


def _descriptor_word(value: Any, kind: str, cells: CellTable) -> int:
    if kind == "c":
        return cells.address(value)
    if kind == "f":
        return int(np.float32(value).view(np.int32))
    return int(value)


def _chain_entries(entries: Sequence[KernelEntry], table: np.ndarray) -> None:
    """Chain row-by-row entries over the same rows, without a barrier."""
    chain = 0
    for index in range(len(entries) - 2, -1, -1):
        here, after = entries[index], entries[index + 1]
        same = (here.count, here.factor, here.grain, here.guard) == (
            after.count,
            after.factor,
            after.grain,
            after.guard,
        )
        chain = chain + 1 if same and here.rowwise and after.rowwise else 0
        table[index, 5] = chain
