"""Lowering of AltUp's streams."""

from collections.abc import Callable
from typing import Any

from sporelm import ops
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import altup_streams
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.altup_streams import MIN_MEAN_SQUARE
from sporelm.ops.spec import require_fixed, spec_of


def _emit(emitter: Emitter, call: Call, kernel: Kernel, more: dict[str, Any]) -> None:
    x, out = call.args[0], call.results[0]
    tokens, width = spec_of(x).shape[0], require_fixed(spec_of(x).shape[-1])
    fields: dict[str, Any] = {"x": emitter.address(x), "out": emitter.address(out), "stride": row_stride(out)}
    fields |= {"vectors": emitter.vectors(width)} | more
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


@lowers(ops.spread_streams, rowwise=True)
def _lower_spread_streams(emitter: Emitter, call: Call) -> None:
    _emit_rows(emitter, call, altup_streams.spread_streams)


@lowers(ops.merge_streams, rowwise=True)
def _lower_merge_streams(emitter: Emitter, call: Call) -> None:
    _emit_rows(emitter, call, altup_streams.merge_streams)


def _emit_rows(emitter: Emitter, call: Call, make_kernel: Callable[..., Kernel]) -> None:
    """Emit a kernel over x and further rows."""
    x, others = call.args
    more: dict[str, Any] = {f"other{number}": emitter.address(other) for number, other in enumerate(others)}
    more |= {"width": float(require_fixed(spec_of(x).shape[1])), "least": MIN_MEAN_SQUARE}
    _emit(emitter, call, make_kernel(emitter.context.target, len(others)), more)


@lowers(ops.stream, rowwise=True)
def _lower_stream(emitter: Emitter, call: Call) -> None:
    (x,) = call.args
    stride, count = row_stride(x), require_fixed(spec_of(x).shape[1])
    more = {"all": stride * count, "before": stride * call.options["index"]}
    _emit(emitter, call, altup_streams.stream(emitter.context.target), more)


@lowers(ops.altup_predict, rowwise=True)
def _lower_altup_predict(emitter: Emitter, call: Call) -> None:
    _emit_streams(emitter, call, altup_streams.altup_predict, ("coefs",))


@lowers(ops.altup_first, rowwise=True)
def _lower_altup_first(emitter: Emitter, call: Call) -> None:
    _emit_streams(emitter, call, altup_streams.altup_first, ("activated", "coefs", "scale"))


@lowers(ops.altup_correct, rowwise=True)
def _lower_altup_correct(emitter: Emitter, call: Call) -> None:
    _emit_streams(emitter, call, altup_streams.altup_correct, ("activated", "coefs", "added"))


def _emit_streams(emitter: Emitter, call: Call, make_kernel: Callable[..., Kernel], names: tuple[str, ...]) -> None:
    """Emit a kernel over streams; `names` are the fields of the arguments after the first."""
    x, *others = call.args
    more: dict[str, Any] = {name: emitter.address(value) for name, value in zip(names, others, strict=True)}
    more["coefs_stride"] = row_stride(others[names.index("coefs")])
    _emit(emitter, call, make_kernel(emitter.context.target, require_fixed(spec_of(x).shape[1])), more)


@lowers(ops.gaussian_topk, rowwise=True)
def _lower_gaussian_topk(emitter: Emitter, call: Call) -> None:
    more = {"width": float(require_fixed(spec_of(call.args[0]).shape[1])), "factor": float(call.options["factor"])}
    _emit(emitter, call, altup_streams.gaussian_topk(emitter.context.target), more)
