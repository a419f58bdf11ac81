"""Lowering of collectives. The CPU has kernels for the groups whose memory it shares; the reference runs the others."""

from math import prod
from typing import Any

from sporelm import ops
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import collectives, logit_selection
from sporelm.backends.cpu.lowering.emitter import Cell, ChunkCount, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.runtime.thread_pool import yield_address
from sporelm.distributed.parking import park_address, sleep_words
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.distributed.shared_memory_layout import CHUNKS
from sporelm.ops import Call
from sporelm.ops.collectives import Ranges
from sporelm.ops.spec import Extent, Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32, DType


def _shares_memory(call: Call) -> bool:
    return isinstance(call.options["group"], SharedMemoryGroup)


def _gathers_ordered(call: Call) -> bool:
    return _shares_memory(call) and _taken_columns(call.options["ranges"]) is not None


def _sends_words(call: Call) -> bool:
    return _shares_memory(call) and _has_words(spec_of(call.args[0]))


def _receives_words(call: Call) -> bool:
    return _shares_memory(call) and _has_words(call.results[0].spec)


def _has_words(spec: Spec) -> bool:
    """Return whether the numbers of a value have the size of an f32: they are copied as such."""
    return isinstance(spec.dtype, DType) and spec.dtype.nbytes == 4


def _group_fields(emitter: Emitter, group: SharedMemoryGroup) -> dict[str, Any]:
    """Return the fields that every kernel needs of a group."""
    emitter.context.register_group(group)
    base = int(group.memory.ctypes.data)
    fields = {"memory": base, "ranks": base + group.layout.rank(0), "rank": group.rank}
    fields |= {
        "yield_core": yield_address(),
        "park": park_address(),
        "timeout": emitter.context.store_words(sleep_words()),
    }
    return fields


def _emit_exchange(
    emitter: Emitter, call: Call, kernel: Kernel, rows: Extent, longest: int, fields: dict[str, Any]
) -> None:
    """Emit an exchange of rows. The widest row of a rank has `longest` numbers."""
    group: SharedMemoryGroup = call.options["group"]
    cell = extent_cell(rows)
    count = Cell(cell.name, cell.constant, chunks=ChunkCount(longest, collectives.CHUNK_VALUES, CHUNKS))
    base = int(group.memory.ctypes.data)
    fields = _group_fields(emitter, group) | fields
    fields |= {"flags": base + group.layout.flags(0), "slots": base + group.layout.slots(0), "size": group.size}
    # a thread takes all its chunks at once: it writes them before it waits for the other ranks
    emitter.emit(kernel, fields | {"count": count, "rows": cell}, count, grain=CHUNKS)


def _out_fields(emitter: Emitter, out: Any) -> dict[str, Any]:
    width = require_fixed(spec_of(out).shape[1])
    fields = {"out": emitter.address(out), "out_stride": row_stride(out), "width": width}
    return fields | {"padded": emitter.vectors(width) * emitter.context.target.lanes}


@lowers(ops.all_reduce, supports=_shares_memory)
def _lower_all_reduce(emitter: Emitter, call: Call) -> None:
    (x,) = call.args
    rows, width = spec_of(x).shape
    fields = {"x": emitter.address(x), "x_stride": row_stride(x)} | _out_fields(emitter, call.results[0])
    kernel = collectives.all_reduce(emitter.context.target, is_alone=call.options["group"].size == 1)
    _emit_exchange(emitter, call, kernel, rows, require_fixed(width), fields)


@lowers(ops.all_gather, supports=_gathers_ordered)
def _lower_all_gather(emitter: Emitter, call: Call) -> None:
    (x,) = call.args
    ranges: Ranges = call.options["ranges"]
    taken = _taken_columns(ranges)
    assert taken is not None
    words = [
        word
        for (start, stop), (first, last) in zip(ranges, taken, strict=True)
        for word in (stop - start, first - start, last - start, start)
    ]
    longest = max(stop - start for start, stop in ranges)
    fields = {"x": emitter.address(x), "x_stride": row_stride(x), "longest": longest}
    fields |= {"ranges": emitter.context.store_words(words)} | _out_fields(emitter, call.results[0])
    kernel = collectives.all_gather(emitter.context.target)
    _emit_exchange(emitter, call, kernel, spec_of(x).shape[0], longest, fields)


def _taken_columns(ranges: Ranges) -> list[tuple[int, int]] | None:
    """Return the columns that are taken from each rank: the columns that no lower rank holds.

    Return None if the columns of a rank are not neighbours.
    """
    taken: list[tuple[int, int]] = []
    for rank, (start, stop) in enumerate(ranges):
        held = {column for low, high in ranges[:rank] for column in range(max(low, start), min(high, stop))}
        own = [column for column in range(start, stop) if column not in held] if held else range(start, stop)
        if not own:
            taken.append((start, start))
        elif own[-1] - own[0] + 1 == len(own):
            taken.append((own[0], own[-1] + 1))
        else:
            return None
    return taken


@lowers(ops.argmax_shards, supports=_shares_memory)
def _lower_argmax_shards(emitter: Emitter, call: Call) -> None:
    (logits,) = call.args
    group, target = call.options["group"], emitter.context.target
    count, vocab = spec_of(logits).shape
    ids = emitter.context.reserve(4 * max_extent(count))
    fields = {"x": emitter.address(logits), "stride": row_stride(logits), "vocab": require_fixed(vocab), "out": ids}
    emitter.emit(logit_selection.argmax(target), fields, extent_cell(count))
    fields = {"x": emitter.address(logits), "x_stride": row_stride(logits), "ids": ids}
    fields |= {"first_id": call.options["ranges"][group.rank][0], "out": emitter.address(call.results[0])}
    _emit_exchange(emitter, call, collectives.argmax_shards(target), count, 2, fields)


def _emit_mailbox(
    emitter: Emitter, call: Call, kernel: Kernel, ranks: tuple[int, int], value: Any, fields: dict[str, Any]
) -> None:
    """Emit a kernel that passes a value from one rank to another; `ranks` has both."""
    group: SharedMemoryGroup = call.options["group"]
    base = int(group.memory.ctypes.data)
    rows, *inner = spec_of(value).shape
    fields = _group_fields(emitter, group) | fields | {"peer": ranks[0] + ranks[1] - group.rank}
    fields |= {"pair": base + group.layout.pair(*ranks), "ring": base + group.layout.ring(*ranks)}
    fields |= {"tokens": extent_cell(rows), "each": prod(map(require_fixed, inner[:-1])), "width": _row_width(value)}
    emitter.emit(kernel, fields, Cell("1", 1))


def _row_width(value: Any) -> int:
    """Return the numbers of a row; values of one dimension are columns."""
    shape = spec_of(value).shape
    return require_fixed(shape[-1]) if len(shape) > 1 else 1


def _stride(value: Any) -> int:
    return row_stride(value) if len(spec_of(value).shape) > 1 else 4


@lowers(ops.send, supports=_sends_words)
def _lower_send(emitter: Emitter, call: Call) -> None:
    (x,) = call.args
    fields = {"x": emitter.address(x), "x_stride": _stride(x)}
    ranks = (call.options["group"].rank, call.options["target"])
    _emit_mailbox(emitter, call, collectives.send(emitter.context.target), ranks, x, fields)


@lowers(ops.receive, supports=_receives_words)
def _lower_receive(emitter: Emitter, call: Call) -> None:
    out = call.results[0]
    width, lanes = _row_width(out), emitter.context.target.lanes
    is_padded = out.spec.dtype is F32 and len(out.shape) > 1
    fields = {"out": emitter.address(out), "out_stride": _stride(out)}
    fields |= {"padded": emitter.vectors(width) * lanes if is_padded else width}
    ranks = (call.options["source"], call.options["group"].rank)
    _emit_mailbox(emitter, call, collectives.receive(emitter.context.target), ranks, out, fields)
