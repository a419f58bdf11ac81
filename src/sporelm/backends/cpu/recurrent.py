"""From calls of ops that carry a state from row to row to entries of kernels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import delta_rule, gated_norm, recurrent
from sporelm.backends.cpu.kernels.convolution import Convolution
from sporelm.backends.cpu.kernels.lightning import lightning_attention as lightning_kernel
from sporelm.backends.cpu.kernels.recurrent import Shape
from sporelm.backends.cpu.kernels.sequences import columns_of
from sporelm.backends.cpu.storage import PageStore, page_store, row_bytes
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of
from sporelm.tensor.dtype import F32


def sequence_fields(low: Emitter, state: Any, starts: Any, lengths: Any, states: Any) -> dict[str, Any]:
    """The fields that say whose rows are whose, and where the states are: in a pool, or a tensor by itself."""
    _, count, width = state.shape
    fields = {"starts": low.at(starts), "lengths": low.at(lengths), "slots": low.at(states), "state": low.at(state)}
    if isinstance(state.storage, PageStore):
        return {**fields, "row_bytes": 4 * width, "slot_bytes": page_store(state).stride}
    row = row_bytes(width, F32)
    return {**fields, "row_bytes": row, "slot_bytes": count * row}


def causal_conv1d(low: Emitter, call: Call) -> None:
    x, weight, bias, *held = call.args
    channels, target = fixed(spec_of(x).shape[1]), low.places.target
    fields = {"x": low.at(x), "out": low.at(call.results[0]), "stride": stride_of(x), "channels": channels}
    fields |= {
        "weight": low.at(weight),
        "weight_stride": stride_of(weight),
        "tiles": -(-channels // columns_of(target)),
    }
    if bias is not None:
        fields["bias"] = low.at(bias)
    taps, silu = fixed(spec_of(weight).shape[0]), bool(call.options.get("silu", True))
    kernel = Convolution(taps, bias is not None, silu).kernel(target)
    _emit(low, kernel, fields, held, fields["tiles"])


def gated_delta_rule(low: Emitter, call: Call) -> None:
    x, alpha, beta, decay, bias, *held = call.args
    heads, shared = fixed(spec_of(decay).shape[0]), int(call.options["key_heads"])
    shape, most_taken = _shape(held[0], heads, call.options["order"]), float(call.options.get("most", 1.0))
    gates = {"alpha": low.at(alpha), "beta": low.at(beta), "stride": stride_of(alpha), "most": most_taken}
    gates["least"] = least = float(call.options.get("least", 0.0))
    target, bounded = low.places.target, least < 0
    kernel = delta_rule.delta_gates(target, bounded=bounded)
    if fixed(spec_of(alpha).shape[1]) != heads:
        shape = replace(shape, by_row=True)
        kernel = delta_rule.delta_gates_by_row(target, shape.rows, bounded=bounded)
        gates |= {"beta_stride": stride_of(beta), "heads": heads}
    fields = _gated(low, kernel, x, decay, bias, gates)
    keys, values = held[4:] or (None, None)
    if keys is None:
        first, keys, values = low.at(x) + 4 * shared * shape.rows, x, x
        places = {"keys": first, "values": first + 4 * shared * shape.rows}
    else:
        places = {"keys": low.at(keys), "values": low.at(values)}
    fields |= {**places, "keys_stride": stride_of(keys), "values_stride": stride_of(values)}
    fields |= {"shared": shared, "heads": heads, "out": low.at(call.results[0])}
    fields |= {"out_stride": stride_of(call.results[0]), "scale": shape.rows**-0.5}
    fields["eps"] = float(call.options.get("eps", 1e-6))
    _emit(low, delta_rule.gated_delta_rule(target, shape), fields, held[:4], heads * shape.tiles(target))


def lightning_attention(low: Emitter, call: Call) -> None:
    x, kept, *held = call.args
    heads = fixed(spec_of(kept).shape[0])
    shape = _shape(held[0], heads, "each")
    fields = {"x": low.at(x), "x_stride": stride_of(x), "kept": low.at(kept), "shared": heads, "heads": heads}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(call.results[0])}
    kernel = lightning_kernel(low.places.target, shape)
    _emit(low, kernel, fields, held, heads * shape.tiles(low.places.target))


def ssm_scan(low: Emitter, call: Call) -> None:
    x, dt, decay, skip, bias, *held = call.args
    heads, shared = fixed(spec_of(decay).shape[0]), int(call.options["groups"])
    shape = _shape(held[0], heads, "each")
    gates: dict[str, Any] = {"dt": low.at(dt), "stride": stride_of(dt)}
    gates |= {"low": float(call.options.get("low", 0.0)), "high": float(call.options.get("high", float("inf")))}
    fields = _gated(low, recurrent.scan_gates(low.places.target), x, decay, bias, gates)
    fields |= {"skip": low.at(skip), "inner": 4 * heads * shape.columns, "shared": shared, "heads": heads}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(call.results[0])}
    kernel = recurrent.ssm_scan(low.places.target, shape)
    _emit(low, kernel, fields, held, heads * shape.tiles(low.places.target))


def _shape(state: Any, heads: int, order: str) -> Shape:
    _, rows, columns = state.shape
    return Shape(rows // heads, columns, order)


def _gated(low: Emitter, kernel: Kernel, x: Any, decay: Any, bias: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What heads are gated by, once for all tiles of their states; the fields by which these find it."""
    tokens, heads = spec_of(x).shape[0], fixed(spec_of(decay).shape[0])
    second = row_bytes(fixed(spec_of(bias).shape[0]), F32)  # bytes of the decays, before the others
    stride = second + row_bytes(heads, F32)
    place = {"gates": low.shared("gates", stride * most(tokens)), "gates_stride": stride, "second": second}
    fields = given | place | {"decay": low.at(decay), "bias": low.at(bias), "vectors": low.vectors(heads)}
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))
    return {"x": low.at(x), "x_stride": stride_of(x), **place}


def _emit(low: Emitter, kernel: Kernel, fields: dict[str, Any], held: list[Any], tiles: int) -> None:
    """Tiles of each sequence; what comes first has few, for each may go over many rows."""
    sequences = cell_of(spec_of(held[2]).shape[0])
    low.emit(kernel, fields | sequence_fields(low, *held), sequences, factor=tiles)


def gated_rms_norm(low: Emitter, call: Call) -> None:
    x, gate, weight = call.args
    tokens, width = spec_of(x).shape
    group = int(call.options["group"])
    own = stride_of(weight) if len(spec_of(weight).shape) == 2 else 0
    fields: dict[str, Any] = {"x": low.at(x), "gate": low.at(gate), "weight": low.at(weight)}
    fields |= {"out": low.at(call.results[0]), "stride": stride_of(x), "groups": fixed(width) // group}
    fields |= {"weight_stride": own, "eps": float(call.options["eps"])}
    opened = call.options.get("activation", "silu")
    kernel = gated_norm.gated_rms_norm(low.places.target, group, call.options["first"], opened)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


ROW_BY_ROW = frozenset({"gated_rms_norm"})
RULES: dict[str, Callable[[Any, Call], None]] = {
    "causal_conv1d": causal_conv1d,
    "gated_delta_rule": gated_delta_rule,
    "gated_rms_norm": gated_rms_norm,
    "lightning_attention": lightning_attention,
    "ssm_scan": ssm_scan,
}
