"""From calls of ops on rows to entries of kernels: layer norms, norms of heads, activation functions."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, rows_of, stride_of
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import activation, norm, rows, slots
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of


def norm_of_heads(low: Emitter, call: Call) -> None:
    """rms_norm with a weight of one head, or of each."""
    x, weight = call.args
    tokens, width = spec_of(x).shape
    head_dim, each = fixed(spec_of(weight).shape[-1]), len(spec_of(weight).shape) == 2
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "weight": low.at(weight)}
    fields["weight_stride"] = stride_of(weight) if each else 0
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(x), "heads": fixed(width) // head_dim}
    fields["eps"] = float(call.options["eps"])
    kernel = norm.rms_norm_of_heads(low.places.target, head_dim)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _layer_norm(low: Emitter, call: Call) -> None:
    adds = call.op.name == "add_layer_norm"
    x, *residual, weight, bias = (*call.args, None, None)[: 4 if adds else 3]
    if weight is not None and len(spec_of(weight).shape) == 2:
        return _layer_norm_of_heads(low, call)
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x)}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(x), "vectors": low.vectors(fixed(width))}
    fields |= {"width": float(fixed(width)), "eps": float(call.options["eps"])}
    if adds:
        fields |= {"residual": low.at(residual[0]), "total": low.at(call.results[1])}
    fields |= {name: low.at(value) for name, value in (("weight", weight), ("bias", bias)) if value is not None}
    kernel = norm.layer_norm(low.places.target, adds=adds, weight=weight is not None, bias=bias is not None)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _layer_norm_of_heads(low: Emitter, call: Call) -> None:
    x, weight = call.args[:2]
    heads, head_dim = spec_of(weight).bound
    tokens = spec_of(x).shape[0]
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "heads": heads}
    fields |= {"weight": low.at(weight), "weight_stride": stride_of(weight), "eps": float(call.options["eps"])}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(x)}
    kernel = norm.layer_norm_of_heads(low.places.target, head_dim)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _join_columns(low: Emitter, call: Call) -> None:
    tokens, out = spec_of(call.args[0]).shape[0], call.results[0]
    fields: dict[str, Any] = {"out": low.at(out), "out_stride": stride_of(out)}
    parts = [part for part in call.args if part is not None]
    for number, part in enumerate(parts):
        fields |= {f"x{number}": low.at(part), f"stride{number}": stride_of(part)}
        fields[f"width{number}"] = fixed(spec_of(part).shape[1])
    fields["padded"] = low.vectors(fixed(spec_of(out).shape[1])) * low.places.target.lanes
    kernel = rows.join_columns(low.places.target, len(parts))
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _join_slots(low: Emitter, call: Call) -> None:
    y, columns = call.args
    out, (tokens, count, width) = call.results[0], spec_of(y).shape
    wanted = fixed(spec_of(columns).shape[0])
    fields: dict[str, Any] = {"x": low.at(y), "x_stride": stride_of(y), "token_bytes": fixed(count) * stride_of(y)}
    fields |= {"width": fixed(width), "columns": low.at(columns), "out": low.at(out), "out_stride": stride_of(out)}
    fields |= {"wanted": wanted, "padded": low.vectors(wanted) * low.places.target.lanes}
    low.emit(slots.join_slots(low.places.target), fields, cell_of(tokens), grain=low.row_grain(tokens))


def _cut_slots(low: Emitter, call: Call) -> None:
    x, columns = call.args
    out, (tokens, count, width) = call.results[0], spec_of(call.results[0]).shape
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "columns": low.at(columns), "out": low.at(out)}
    fields |= {"token_bytes": fixed(count) * stride_of(out), "out_stride": stride_of(out), "slots": fixed(count)}
    fields |= {"width": fixed(width), "padded": low.vectors(fixed(width)) * low.places.target.lanes}
    low.emit(slots.cut_slots(low.places.target), fields, cell_of(tokens), grain=low.row_grain(tokens))


def _scale_by(low: Emitter, call: Call) -> None:
    x, factor = call.args
    tokens, each, width = rows_of(x)
    fields: dict[str, Any] = {"x": low.at(x), "factor": low.at(factor), "out": low.at(call.results[0])}
    fields |= {"stride": stride_of(x), "vectors": low.vectors(width)}
    grain = low.row_grain(tokens, each)
    low.emit(activation.scale_by(low.places.target), fields, cell_of(tokens), factor=each, grain=grain)


def _xielu(low: Emitter, call: Call) -> None:
    x, *numbers = call.args
    tokens, each, width = rows_of(x)
    fields: dict[str, Any] = {"x": low.at(x), "out": low.at(call.results[0])}
    fields |= {"stride": stride_of(x), "vectors": low.vectors(width)}
    for name, given in zip(call.op.arguments[1:], numbers, strict=True):
        size = stride_of(given) if len(spec_of(given).shape) == 2 else 4
        fields[name] = low.at(given) + call.options["layer"] * size
    grain = low.row_grain(tokens, each)
    low.emit(activation.xielu(low.places.target), fields, cell_of(tokens), factor=each, grain=grain)


def each_element(kernel: Callable[..., Kernel]) -> Callable[[Emitter, Call], None]:
    """Element by element; options that are numbers are fields, texts choose the kernel."""

    def lower(low: Emitter, call: Call) -> None:
        x = call.args[0]
        tokens, each, width = rows_of(x)
        fields: dict[str, Any] = dict(zip("xy", map(low.at, call.args), strict=False))
        fields |= {"out": low.at(call.results[0]), "stride": stride_of(x), "vectors": low.vectors(width)}
        chosen = [value for value in call.options.values() if isinstance(value, str)]
        fields |= {name: float(value) for name, value in call.options.items() if not isinstance(value, str)}
        grain = low.row_grain(tokens, each)
        low.emit(kernel(low.places.target, *chosen), fields, cell_of(tokens), factor=each, grain=grain)

    return lower


RULES: dict[str, Callable[[Any, Call], None]] = {
    "layer_norm": _layer_norm,
    "add_layer_norm": _layer_norm,
    "activate": each_element(activation.activate),
    "activate_mul": each_element(activation.activate_mul),
    "clip": each_element(activation.clip),
    "join_columns": _join_columns,
    "join_slots": _join_slots,
    "cut_slots": _cut_slots,
    "scale_by": _scale_by,
    "scale": each_element(activation.scale),
    "softcap": each_element(activation.softcap),
    "xielu": _xielu,
}
