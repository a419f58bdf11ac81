"""From calls of RWKV's ops to entries of their kernels."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.kernels import norm, rwkv
from sporelm.backends.cpu.kernels.recurrent import Shape
from sporelm.backends.cpu.recurrent import sequence_fields
from sporelm.backends.cpu.storage import row_bytes
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of
from sporelm.tensor.dtype import F32


def mix_rows(low: Emitter, call: Call) -> None:
    x, delta, mixes, more = (*call.args, ())[:4]
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": low.at(x), "delta": low.at(delta), "stride": stride_of(x)}
    fields["vectors"] = low.vectors(fixed(width))
    for name, values in (("mix", mixes), ("more", more), ("out", call.results)):
        fields |= {f"{name}{number}": low.at(value) for number, value in enumerate(values)}
    kernel = rwkv.mix_rows(low.places.target, len(mixes), bool(more))
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def blend(low: Emitter, call: Call) -> None:
    tokens, width = spec_of(call.args[0]).shape
    fields: dict[str, Any] = dict(zip(("x", "y", "gate"), map(low.at, call.args), strict=True))
    fields |= {"out": low.at(call.results[0]), "stride": stride_of(call.args[0]), "vectors": low.vectors(fixed(width))}
    low.emit(rwkv.blend(low.places.target), fields, cell_of(tokens), grain=low.row_grain(tokens))


def group_norm(low: Emitter, call: Call) -> None:
    x, weight, bias = call.args
    tokens, width = spec_of(x).shape
    group = int(call.options["group"])
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "heads": fixed(width) // group}
    fields |= {
        "weight": low.at(weight),
        "bias": low.at(bias),
        "weight_stride": 4 * group * (spec_of(weight).shape == spec_of(x).shape[1:]),
    }
    fields |= {"eps": float(call.options["eps"]), "out": low.at(call.results[0]), "out_stride": stride_of(x)}
    kernel = norm.layer_norm_of_heads(low.places.target, group, bias=True)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def wkv7(low: Emitter, call: Call) -> None:
    r, w, k, v, a, removed, kept, bonus, *held = call.args
    tokens, (heads, dim) = spec_of(r).shape[0], spec_of(bonus).bound
    out, alone = call.results
    shape, target = Shape(dim, fixed(held[0].shape[2]), "each"), low.places.target
    second = row_bytes(heads * dim, F32)
    stride = rwkv.BROUGHT * second + row_bytes(2 * heads, F32)
    place = {"brought": low.shared("gates", stride * most(tokens)), "brought_stride": stride, "second": second}
    shared: dict[str, Any] = {"v": low.at(v), "v_stride": stride_of(v), "heads": heads, **place}
    fields = shared | {"r": low.at(r), "w": low.at(w), "k": low.at(k), "a": low.at(a), "stride": stride_of(r)}
    fields |= {"removed": low.at(removed), "kept": low.at(kept), "bonus": low.at(bonus)}
    fields |= {"bonus_stride": stride_of(bonus), "alone": low.at(alone)}
    kernel = rwkv.wkv7_brought(target, dim, shape.columns)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))
    fields = shared | {"out": low.at(out), "shared": heads, **sequence_fields(low, *held)}
    sequences = cell_of(spec_of(held[2]).shape[0])
    low.emit(rwkv.wkv7(target, shape), fields, sequences, factor=heads * shape.tiles(target))


def wkv6(low: Emitter, call: Call) -> None:
    r, w, k, v, bonus, *held = call.args
    tokens, (heads, dim) = spec_of(r).shape[0], spec_of(bonus).bound
    shape, target = Shape(dim, fixed(held[0].shape[2]), "each"), low.places.target
    second = row_bytes(heads * dim, F32)
    stride = second + row_bytes(heads, F32)
    shared: dict[str, Any] = {"brought": low.shared("gates", stride * most(tokens)), "brought_stride": stride}
    shared |= {"second": second, "heads": heads, "r": low.at(r), "k": low.at(k), "stride": stride_of(r)}
    fields = shared | {"w": low.at(w), "bonus": low.at(bonus), "bonus_stride": stride_of(bonus)}
    low.emit(rwkv.wkv6_brought(target, dim), fields, cell_of(tokens), grain=low.row_grain(tokens))
    fields = shared | {"v": low.at(v), "v_stride": stride_of(v), "out": low.at(call.results[0]), "shared": heads}
    sequences = cell_of(spec_of(held[2]).shape[0])
    fields |= sequence_fields(low, *held)
    low.emit(rwkv.wkv6(target, shape), fields, sequences, factor=heads * shape.tiles(target))


def gated_linear_attention(low: Emitter, call: Call) -> None:
    r, w, k, v, *held = call.args
    tokens, heads = spec_of(r).shape[0], int(call.options["heads"])
    dim = fixed(spec_of(r).shape[1]) // heads
    shape, target = Shape(dim, fixed(held[0].shape[2]), "each"), low.places.target
    second = row_bytes(heads * dim, F32)
    shared: dict[str, Any] = {"brought": low.shared("gates", 2 * second * most(tokens)), "brought_stride": 2 * second}
    shared |= {"second": second, "heads": heads, "shared": int(call.options["key_heads"]), "stride": stride_of(r)}
    fields = shared | {"w": low.at(w), "k": low.at(k), "k_stride": stride_of(k)}
    low.emit(rwkv.grouped_brought(target, dim), fields, cell_of(tokens), grain=low.row_grain(tokens))
    fields = shared | {"r": low.at(r), "v": low.at(v), "v_stride": stride_of(v), "out": low.at(call.results[0])}
    fields |= {"out_stride": stride_of(call.results[0]), "scale": dim**-0.5, **sequence_fields(low, *held)}
    sequences = cell_of(spec_of(held[2]).shape[0])
    low.emit(rwkv.gated_linear_attention(target, shape), fields, sequences, factor=heads * shape.tiles(target))


ROW_BY_ROW = frozenset({"blend", "group_norm", "mix_rows"})
RULES: dict[str, Callable[[Any, Call], None]] = {
    "blend": blend,
    "gated_linear_attention": gated_linear_attention,
    "group_norm": group_norm,
    "mix_rows": mix_rows,
    "wkv6": wkv6,
    "wkv7": wkv7,
}
