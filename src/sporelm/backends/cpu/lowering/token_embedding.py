"""Lowering of embedding lookup."""

from sporelm import ops
from sporelm.backends.cpu.kernels import token_embedding
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.packed_weight import packed_weight
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.embedding, rowwise=True)
def _lower_embedding(emitter: Emitter, call: Call) -> None:
    ids, table = call.args
    packed = packed_weight(table)
    out = call.results[0]
    fields = {
        "ids": emitter.address(ids),
        "table": packed.address,
        "panel_bytes": packed.panel_bytes,
        "out": emitter.address(out),
    }
    fields |= {"out_stride": row_stride(out), "groups": packed.kind.groups(packed.width), "width": packed.width}
    fields |= {"padded": emitter.vectors(packed.width) * emitter.context.target.lanes, "vocab": packed.rows}
    tokens = spec_of(ids).shape[0]
    first = call.options.get("first")
    fields |= {} if first is None else {"first": first}
    fills = call.options.get("fills", False)
    kernel = token_embedding.embedding(emitter.context.target, packed.kind, fills, is_part=first is not None)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
