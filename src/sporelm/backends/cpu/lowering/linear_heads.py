"""Lowering of products with a matrix for each head."""

from sporelm import ops
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.formats.activation_records import RECORDS
from sporelm.backends.cpu.kernels import linear_heads as products
from sporelm.backends.cpu.kernels import quantize_rows
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.runtime.tensor_storage import PackedExperts, row_bytes
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.quantize_rows import ROW_FORMATS
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.linear_heads)
def _lower_linear_heads(emitter: Emitter, call: Call) -> None:
    """Lower `linear_heads`. Where weights multiply int8, each head's columns are rounded first, into memory that
    belongs to no call."""
    x, weight = call.args
    packed = weight.storage
    if not isinstance(packed, PackedExperts):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    kind, target, (heads, out, width) = packed.kind, emitter.context.target, packed.shape
    tokens, columns = spec_of(x).shape
    head_dim, cell = require_fixed(columns) // heads, extent_cell(tokens)
    at, stride, head_stride = emitter.address(x) + 4 * (head_dim - width), row_stride(x), 4 * head_dim
    if isinstance(kind, IntegerPanels):
        rounded = ROW_FORMATS[kind.activation]
        each = row_bytes(width, rounded)
        fields = {"x": at, "x_stride": stride, "head_stride": head_stride, "heads": heads, "out_stride": each}
        at, stride, head_stride = (
            emitter.shared_scratch("rounded heads", max_extent(tokens) * heads * each),
            heads * each,
            each,
        )
        fields |= {"out": at, "blocks": width // rounded.values, "padded": each // RECORDS[rounded.name]}
        kernel = quantize_rows.quantize_heads(target, rounded.name)
        emitter.emit(kernel, fields, cell, factor=heads, grain=emitter.row_grain(tokens, heads))
    given = {"x": at, "x_stride": stride, "head_stride": head_stride, "width": width, "tokens": cell}
    given |= {"weight": packed.address, "head_bytes": packed.expert_bytes, "panel_bytes": packed.panel_bytes}
    given |= {
        "panels": packed.panels,
        "out": emitter.address(call.results[0]),
        "out_stride": row_stride(call.results[0]),
    }
    items = heads * -(-packed.panels // target.tiles.few_of(kind)[0])
    kernel = products.linear_heads(target, LinearShape(kind), one=max_extent(tokens) == 1, out=out)
    grain = max(1, items // (8 * emitter.context.threads))
    emitter.emit(kernel, given, Cell("1", 1), factor=items, grain=grain, guard=(cell, 1, max_extent(tokens)))
