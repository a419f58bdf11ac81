"""The work that tuning measures: the kernels that depend on a tile, on separate memory, timed on the calling thread.

Weights of the few-token kernels come from memory, as in decoding; those of the many-token kernels stay in the L2 cache,
as in a long prompt. The time is the thread's CPU time, so that a busy neighbour costs little.
"""

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.kernels import many_token_linear, quantized_linear
from sporelm.backends.cpu.kernels import paged_attention as att
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.lowering.paged_attention import NO_WINDOW
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.tensor_storage import row_bytes
from sporelm.backends.cpu.runtime.thread_pool import SCRATCH_BYTES
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.quantize_rows import ROW_FORMATS
from sporelm.tensor.dtype import F32

STREAM_BYTES = 64 << 20  # bytes of weights that are streamed, more than the caches of a core hold
TURN_BYTES = 2 << 20  # of them at a time
FEW_WIDTH, MANY_WIDTH = 2048, 1024
MANY_PANELS = 24  # a multiple of every tile's
FEW_TOKENS = (2, 4, 6, 8, 12, 16)
ONE_WEIGHT = 2  # of one token, against 1 for each of those
MANY_TOKENS = (
    (many_token_linear.TOKENS_PER_BLOCK, 2),
    (32, 1),
)  # tokens and their weight: a full block, and the end of a prompt
CROSSOVER_PANELS = 48  # about as many as a thread claims at once; a multiple of every tile's
CROSSOVER_TOKENS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, many_token_linear.TOKENS_PER_BLOCK)
HEADS = ((64, 4), (128, 4))  # dimension, query heads a kv head
ATTENTION_TOKENS, POSITIONS = 64, 576
FILL = 37  # the value of every weight byte: f16 0.02, f32 1.4e-16, small integers
ROW_FILL = 60  # of rounded rows: no factor in them is small enough to slow arithmetic down

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def _clock() -> Callable[[], float]:
    """Return the thread's CPU time if its clock is fine enough, else the wall-clock time."""
    fine = hasattr(time, "thread_time") and time.get_clock_info("thread_time").resolution < 1e-5
    return time.thread_time if fine else time.perf_counter


CLOCK = _clock()


class TuningMemory:
    """The memory that all runs share, for rows of `columns` numbers."""

    def __init__(
        self, rows: int = many_token_linear.TOKENS_PER_BLOCK, columns: int = max(FEW_WIDTH, MANY_WIDTH)
    ) -> None:
        self.weights = Region(STREAM_BYTES + 4096, huge=True)
        self.weights.array[:] = FILL
        self.floats, self.rounded, self.out = (Region(4 * rows * columns) for _ in range(3))
        self.floats.array.view(np.float32)[:] = 1
        self.rounded.array[:] = ROW_FILL
        self.scratch = Region(SCRATCH_BYTES)


class TimedKernel:
    """One kernel on given memory; `nbytes` of the stream of weights per run, from its start at every run if 0."""

    def __init__(
        self, compiler: Compiler, kernel: Kernel, fields: dict[str, Any], items: int, arena: TuningMemory,
        weight: float = 1, nbytes: int = 0,
    ) -> None:  # fmt: skip
        self.weight = weight  # weight in the score of a tile
        self._keep = (compiler, fields)  # the machine code, and arrays that fields point to
        self._cells = np.array([fields[name] if kind == "c" else 0 for name, kind in kernel.fields], np.int64)
        cells = self._cells.ctypes.data
        values = [(fields[name], kind, cells + 8 * n) for n, (name, kind) in enumerate(kernel.fields)]
        self._words = np.array([_descriptor_word(*value) for value in values], np.int64)
        self._function = _SIGNATURE(compiler.address(kernel))
        self._arguments = (self._words.ctypes.data, 0, items, arena.scratch.address)
        self._moving = [name for name, _ in kernel.fields].index("weight0") if nbytes else -1
        self._places = [
            arena.weights.address + at for at in range(0, STREAM_BYTES - nbytes + 1, nbytes or STREAM_BYTES + 1)
        ]

    def seconds(self, turn: int) -> float:
        if self._moving >= 0:
            self._words[self._moving] = self._places[turn % len(self._places)]
        start = CLOCK()
        self._function(*self._arguments)
        return CLOCK() - start


def _descriptor_word(value: Any, kind: str, cell: int) -> int:
    """Return a descriptor's 8 bytes for one field."""
    if kind == "c":
        return cell
    if kind == "f":
        return int(np.float32(value).view(np.int32))
    return int(value.ctypes.data if isinstance(value, np.ndarray) else value)


class TuningWorkload(NamedTuple):
    """A kernel and its data."""

    kernel: Kernel
    fields: dict[str, Any]
    items: int
    weight: float = 1
    nbytes: int = 0

    def run(self, compiler: Compiler, arena: TuningMemory) -> TimedKernel:
        return TimedKernel(compiler, self.kernel, self.fields, self.items, arena, self.weight, self.nbytes)


def few_token_workloads(target: CpuTarget, name: str, arena: TuningMemory) -> Iterator[TuningWorkload]:
    """Return a format's products for one token and for a few, with weights from memory."""
    kind = FORMATS[name](target)
    shape = quantized_linear.LinearShape(kind)
    panel = kind.panel_bytes(FEW_WIDTH)
    panels = max(1, TURN_BYTES // panel // 12) * 12  # a multiple of every tile's
    fields = linear_fields(kind, FEW_WIDTH, panels, arena)
    yield TuningWorkload(
        quantized_linear.linear_one(target, shape), fields | {"tokens": 1}, panels, ONE_WEIGHT, panels * panel
    )
    kernel = quantized_linear.linear_few(target, shape)
    for tokens in FEW_TOKENS:
        yield TuningWorkload(kernel, fields | {"tokens": tokens}, panels, 1, panels * panel)


def many_token_workloads(target: CpuTarget, name: str, arena: TuningMemory) -> Iterator[TuningWorkload]:
    """Return a format's products for many tokens, with weights from the cache."""
    kind = FORMATS[name](target)
    shape = quantized_linear.LinearShape(kind)
    panels = MANY_PANELS * max(1, 8 // target.lanes)
    fields = linear_fields(kind, MANY_WIDTH, panels, arena)
    kernel, items = (
        many_token_linear.linear_many(target, shape),
        many_token_linear.count_panel_tiles(shape, target, [panels]),
    )
    for tokens, weight in MANY_TOKENS:
        yield TuningWorkload(kernel, fields | {"tokens": tokens}, items, weight)


def crossover_workloads(
    target: CpuTarget, name: str, arena: TuningMemory
) -> Iterator[tuple[int, tuple[TuningWorkload, TuningWorkload]]]:
    """Yield numbers of tokens, each with a format's few-token and many-token product, with weights from memory."""
    kind = FORMATS[name](target)
    shape = quantized_linear.LinearShape(kind)
    panel = kind.panel_bytes(FEW_WIDTH)
    panels = CROSSOVER_PANELS
    fields = linear_fields(kind, FEW_WIDTH, panels, arena)
    few, many = quantized_linear.linear_few(target, shape), many_token_linear.linear_many(target, shape)
    tiles = many_token_linear.count_panel_tiles(shape, target, [panels])
    for tokens in CROSSOVER_TOKENS:
        own, nbytes = fields | {"tokens": tokens}, panels * panel
        yield tokens, (TuningWorkload(few, own, panels, 1, nbytes), TuningWorkload(many, own, tiles, 1, nbytes))


def linear_fields(kind: Any, width: int, panels: int, arena: TuningMemory) -> dict[str, Any]:
    """Return the fields of a product with panels at the start of the stream of weights."""
    integers = isinstance(kind, IntegerPanels)
    stride = row_bytes(width, ROW_FORMATS[kind.activation] if integers else F32)
    fields = {"x": (arena.rounded if integers else arena.floats).address, "x_stride": stride, "width": width}
    fields |= {"panel_bytes": kind.panel_bytes(width), "weight0": arena.weights.address, "panels0": panels}
    return fields | {"out0": arena.out.address, "out_stride0": 4 * kind.lanes * panels}


def attention_workloads(target: CpuTarget, arena: TuningMemory) -> Iterator[TuningWorkload]:
    """Return attention of many tokens of one sequence, and of one token, to f16 pages in the cache."""
    table = np.arange(POSITIONS // PAGE, dtype=np.int32)
    lengths, one = np.array([POSITIONS], np.int32), np.array([0, 1], np.int32)
    starts = np.array([0, ATTENTION_TOKENS], np.int32)
    for head_dim, group in HEADS:
        pages = KvPages(head_dim, "f16")
        heads = AttentionShape(pages, group)
        row = 4 * head_dim * group
        fields = {"q": arena.floats.address, "q_stride": row, "cache": arena.weights.address, "lengths": lengths}
        fields |= {"page_bytes": pages.page_bytes(1), "table": table, "table_stride": 4 * len(table), "scale": 0.1}
        fields |= {"window": NO_WINDOW, "kv_heads": 1, "out": arena.out.address, "out_stride": row}
        tiles = ATTENTION_TOKENS // att.TILE_TOKENS
        several = fields | {"starts": starts, "decoding": 0, "tiles": tiles}
        yield TuningWorkload(attention_tile(target, heads), several, tiles, 2)
        splits = -(-POSITIONS // att.SPLIT)
        alone = fields | {"starts": one, "splits": splits, "parts": arena.floats.address + (1 << 19)}
        yield TuningWorkload(att.attention_split(target, heads), alone, splits, 1)


VECTOR_SPILL = re.compile(r"%[xyz]mm\d+.*\(%rsp|\(%rsp.*%[xyz]mm\d+|\bq\d+\b.*\[sp\b")
LABEL = re.compile(r"\.?LBB\d+_\d+")
JUMP = re.compile(r"\s+(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?(\.?LBB\d+_\d+)\s*$")


def count_hot_spills(assembly: str) -> int:
    """Count vectors that innermost loops spill to or reload from the stack; x86 (AT&T) or 64-bit Arm."""
    lines = assembly.splitlines()
    labels: dict[str, int] = {}
    loops = []
    for number, line in enumerate(lines):
        label, jump = LABEL.match(line), JUMP.match(line)
        if label:
            labels[label[0]] = number
        elif jump and jump[1] in labels:
            loops.append((labels[jump[1]], number))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return sum(bool(VECTOR_SPILL.search(line)) for first, last in inner for line in lines[first:last])
