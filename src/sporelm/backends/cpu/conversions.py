"""Rules of the ops that turn rows of numbers into blocks of a number format, and back."""

from collections.abc import Collection
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import blocks, widen
from sporelm.backends.cpu.quantizers import QUANTIZERS
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of
from sporelm.quant import format_of

BLOCK_VALUES = 1 << 15  # values that a thread converts at a time: enough to fill the lanes with blocks, few for a cache

# Ops that have kernels for some number formats only.
BY_FORMAT: dict[str, Collection[str]] = {
    "quantize_blocks": QUANTIZERS.keys() | blocks.NUMBERS.keys(),
    "dequantize_blocks": widen.WIDENED.keys() | widen.NUMBERS.keys(),
}


def quantize_blocks(low: Emitter, call: Call) -> None:
    values, *rest = call.args
    kind, importance = format_of(call.options["format"]), rest[0] if rest else None
    _, width = spec_of(values).shape
    fields = {"blocks": fixed(width) // kind.values, "out": low.at(call.results[0])}
    fields |= {"values": low.at(values), "stride": stride_of(values)}
    weighted = importance is not None and kind.weighted
    if weighted:
        fields |= {"importance": low.at(importance), "width": fixed(width)}
    _convert(low, values, blocks.quantize_blocks(low.places.target, kind.name, weighted), fields, fixed(width))


def dequantize_blocks(low: Emitter, call: Call) -> None:
    (source,) = call.args
    kind, (out,) = format_of(call.options["format"]), call.results
    width = fixed(spec_of(out).shape[1])
    fields = {"source": low.at(source), "blocks": width // kind.values, "out": low.at(out), "stride": stride_of(out)}
    _convert(low, source, widen.dequantize_blocks(low.places.target, kind.name), fields, width)


def count_nonfinite(low: Emitter, call: Call) -> None:
    (values,) = call.args
    width = fixed(spec_of(values).shape[1])
    fields = {"width": width, "out": low.at(call.results[0]), "values": low.at(values), "stride": stride_of(values)}
    _convert(low, values, blocks.count_nonfinite(low.places.target), fields, width)


def _convert(low: Emitter, values: Any, kernel: Kernel, fields: dict[str, Any], width: int) -> None:
    """Conversions of `width` numbers a row all take as many rows at a time, so that they follow one another."""
    rows = spec_of(values).shape[0]
    grain = max(1, min(BLOCK_VALUES // max(1, width), most(rows) // (2 * low.places.threads)))
    low.emit(kernel, fields, cell_of(rows), grain=grain)
