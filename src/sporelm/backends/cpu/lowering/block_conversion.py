"""Lowering of conversions between rows of numbers and blocks of a number format."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import block_conversion, block_dequantization
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.quantizers import QUANTIZERS
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.quant import format_of

BLOCK_VALUES = (
    1 << 15
)  # values that a thread converts at a time: enough to fill the lanes with blocks, few enough for a cache


QUANTIZED_FORMATS = frozenset(QUANTIZERS) | frozenset(block_conversion.NARROW_FLOATS)
DEQUANTIZED_FORMATS = frozenset(block_dequantization.BLOCK_READERS) | frozenset(block_dequantization.WIDEN_FLOATS)


def _can_quantize(call: Call) -> bool:
    return format_of(call.options["format"]).name in QUANTIZED_FORMATS


def _can_dequantize(call: Call) -> bool:
    return format_of(call.options["format"]).name in DEQUANTIZED_FORMATS


@lowers(ops.quantize_blocks, rowwise=True, supports=_can_quantize)
def _lower_quantize_blocks(emitter: Emitter, call: Call) -> None:
    values, *rest = call.args
    kind, importance = format_of(call.options["format"]), rest[0] if rest else None
    _, width = spec_of(values).shape
    fields = {"blocks": require_fixed(width) // kind.values, "out": emitter.address(call.results[0])}
    fields |= {"values": emitter.address(values), "stride": row_stride(values)}
    weighted = importance is not None and kind.can_weigh
    if weighted:
        fields |= {"importance": emitter.address(importance), "width": require_fixed(width)}
    _convert(
        emitter,
        values,
        block_conversion.quantize_blocks(emitter.context.target, kind.name, weighted),
        fields,
        require_fixed(width),
    )


@lowers(ops.dequantize_blocks, rowwise=True, supports=_can_dequantize)
def _lower_dequantize_blocks(emitter: Emitter, call: Call) -> None:
    (source,) = call.args
    kind, (out,) = format_of(call.options["format"]), call.results
    width = require_fixed(spec_of(out).shape[1])
    fields = {
        "source": emitter.address(source),
        "blocks": width // kind.values,
        "out": emitter.address(out),
        "stride": row_stride(out),
    }
    _convert(emitter, source, block_dequantization.dequantize_blocks(emitter.context.target, kind.name), fields, width)


@lowers(ops.count_nonfinite, rowwise=True)
def _lower_count_nonfinite(emitter: Emitter, call: Call) -> None:
    (values,) = call.args
    width = require_fixed(spec_of(values).shape[1])
    fields = {
        "width": width,
        "out": emitter.address(call.results[0]),
        "values": emitter.address(values),
        "stride": row_stride(values),
    }
    _convert(emitter, values, block_conversion.count_nonfinite(emitter.context.target), fields, width)


def _convert(emitter: Emitter, values: Any, kernel: Kernel, fields: dict[str, Any], width: int) -> None:
    """Emit a conversion of `width` numbers per row. All conversions take equally many rows at a time, so that they
    can be chained."""
    rows = spec_of(values).shape[0]
    grain = max(1, min(BLOCK_VALUES // max(1, width), max_extent(rows) // (2 * emitter.context.threads)))
    emitter.emit(kernel, fields, extent_cell(rows), grain=grain)
