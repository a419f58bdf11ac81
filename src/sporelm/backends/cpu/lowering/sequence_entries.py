"""Lowering shared by ops that carry a state from row to row."""

from typing import Any

from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels.recurrent_state import StateShape
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.runtime.tensor_storage import PageStore, page_store, row_bytes
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.tensor.dtype import F32


def sequence_fields(emitter: Emitter, state: Any, starts: Any, lengths: Any, states: Any) -> dict[str, Any]:
    """Return the fields that give the rows of each sequence and its state, in a pool or in a separate tensor."""
    _, count, width = state.shape
    fields = {
        "starts": emitter.address(starts),
        "lengths": emitter.address(lengths),
        "slots": emitter.address(states),
        "state": emitter.address(state),
    }
    if isinstance(state.storage, PageStore):
        return {**fields, "row_bytes": 4 * width, "slot_bytes": page_store(state).stride}
    row = row_bytes(width, F32)
    return {**fields, "row_bytes": row, "slot_bytes": count * row}


def state_shape(state: Any, heads: int, order: str) -> StateShape:
    _, rows, columns = state.shape
    return StateShape(rows // heads, columns, order)


def emit_gates(
    emitter: Emitter, kernel: Kernel, x: Any, decay: Any, bias: Any, given: dict[str, Any]
) -> dict[str, Any]:
    """Emit the gates of heads, once for all tiles of their states; return the fields by which tiles find them."""
    tokens, heads = spec_of(x).shape[0], require_fixed(spec_of(decay).shape[0])
    second = row_bytes(require_fixed(spec_of(bias).shape[0]), F32)  # bytes of the decays, which precede the others
    stride = second + row_bytes(heads, F32)
    place = {
        "gates": emitter.shared_scratch("gates", stride * max_extent(tokens)),
        "gates_stride": stride,
        "second": second,
    }
    fields = (
        given
        | place
        | {"decay": emitter.address(decay), "bias": emitter.address(bias), "vectors": emitter.vectors(heads)}
    )
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
    return {"x": emitter.address(x), "x_stride": row_stride(x), **place}


def emit_sequences(emitter: Emitter, kernel: Kernel, fields: dict[str, Any], held: list[Any], tiles: int) -> None:
    """Emit tiles of each sequence; few per chunk, because each may cover many rows."""
    sequences = extent_cell(spec_of(held[2]).shape[0])
    emitter.emit(kernel, fields | sequence_fields(emitter, *held), sequences, factor=tiles)
