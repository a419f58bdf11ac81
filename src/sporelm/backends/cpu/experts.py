"""How the ops of experts are lowered: routing, products of one token and of groups of pairs, and their sum."""

from collections.abc import Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any, NamedTuple

from sporelm import ops
from sporelm.backends.cpu.entries import Cell, Emitter, cell_of, most, rows_of, stride_of
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.kernels import experts, idle, routing
from sporelm.backends.cpu.kernels.linear import Shape
from sporelm.backends.cpu.storage import PackedExperts
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of
from sporelm.tensor.dtype import F32

ROUTE_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {name: p.default for name, p in signature(ops.route.meaning).parameters.items() if p.default is not p.empty}
)


class Groups(NamedTuple):
    """Where the order of a step's pairs lies: the addresses of the pairs, of the groups, and of how many groups."""

    pairs: int
    groups: int
    number: int


def route(low: Emitter, call: Call) -> None:
    logits, bias, factors = (*call.args, None, None)[:3]
    options = {**ROUTE_OPTIONS, **call.options}
    weights, ids = call.results
    tokens, experts_count = spec_of(logits).shape
    grouped = options["top_groups"] < options["groups"]
    choice = routing.Choice(
        options["scores"],
        bias is not None,
        options["renormalize"],
        grouped,
        options["group_score"],
        factors is not None,
    )
    fields: dict[str, Any] = {"x": low.at(logits), "x_stride": stride_of(logits), "experts": fixed(experts_count)}
    fields |= {"vectors": low.vectors(fixed(experts_count)), "k": options["k"], "scale": float(options["scale"])}
    fields |= {"weights": low.at(weights), "weights_stride": stride_of(weights), "ids": low.at(ids)}
    fields |= {"groups": options["groups"], "top_groups": options["top_groups"], "epsilon": float(options["epsilon"])}
    fields["near"] = float(options["near"])
    fields |= {name: low.at(value) for name, value in (("bias", bias), ("factors", factors)) if value is not None}
    kernel = routing.route(low.places.target, choice)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def part_idle(low: Emitter, call: Call) -> None:
    shares, ids = call.args
    tokens, slots = spec_of(shares).shape
    out, kept, rest = call.results
    fields: dict[str, Any] = {"shares": low.at(shares), "shares_stride": stride_of(shares), "ids": low.at(ids)}
    fields |= {"experts": call.options["experts"], "k": fixed(slots), "out": low.at(out), "kept": low.at(kept)}
    fields |= {"out_stride": stride_of(out), "rest": low.at(rest), "rest_stride": stride_of(rest)}
    low.emit(idle.part_idle(low.places.target), fields, cell_of(tokens), grain=low.row_grain(tokens))


def linear_experts(low: Emitter, call: Call) -> None:
    x, weight, ids, *rest = call.args
    _product(low, call, x, [weight], ids, rest[0] if rest else None)


def linear_experts_silu_mul(low: Emitter, call: Call) -> None:
    x, gate, up, ids = call.args
    _product(low, call, x, [gate, up], ids, None)


def combine_experts(low: Emitter, call: Call) -> None:
    y, weights, *rest = call.args
    (out,) = call.results
    tokens, slots = spec_of(weights).shape
    fields = {"y": low.at(y), "y_stride": stride_of(y), "slots": fixed(slots), "out": low.at(out)}
    fields |= {"weights": low.at(weights), "weights_stride": stride_of(weights), "out_stride": stride_of(out)}
    fields["blocks"] = -(-rows_of(out)[2] // experts.VALUES)
    bias = rest[0] if rest else None
    fields |= {} if bias is None else {"bias": low.at(bias)}
    kernel = experts.combine_experts(low.places.target, bias=bias is not None)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _packed(weight: Any) -> PackedExperts:
    if not isinstance(weight.storage, PackedExperts):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    return weight.storage


def _product(low: Emitter, call: Call, x: Any, weights: list[Any], ids: Any, bias: Any) -> None:
    """One token's experts one after the other, or groups of pairs in a way that the step's size decides."""
    packed = [_packed(weight) for weight in weights]
    first, target, threads = packed[0], low.places.target, low.places.threads
    kind, given = first.kind, spec_of(x)
    if given.dtype.name != (kind.activation if isinstance(kind, IntegerPanels) else F32.name):
        raise BackendError(f"weights in {kind.name} panels do not multiply {given}; apply the rule quantize_rows")
    (tokens, slots), (out,) = spec_of(ids).shape, call.results
    each, shape = len(given.shape) == 3, Shape(kind, len(packed), bias is not None, "silu" if len(packed) == 2 else "")
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "width": first.width, "panels": first.panels}
    fields |= {"panel_bytes": first.panel_bytes, "expert_bytes": first.expert_bytes, "experts": first.shape[0]}
    fields |= {"out": low.at(out), "out_stride": stride_of(out)}
    fields |= {f"weight{number}": weight.address for number, weight in enumerate(packed)}
    if bias is not None:
        fields |= {"bias": low.at(bias), "bias_stride": stride_of(bias)}
    pairs = most(tokens) * fixed(slots)
    many = pairs > target.tiles.few_tokens_of(kind)  # as many as one expert may have
    tiles = experts.tiles_of(shape, target, first.panels, many=many)
    if most(tokens) == 1:
        fields |= {"ids": low.at(ids), "slots": fixed(slots), "slot_stride": stride_of(x) if each else 0}
        total = tiles * fixed(slots)
        kernel = experts.experts_one(target, shape)
        low.emit(kernel, fields, cell_of(tokens), factor=total, grain=max(1, total // (8 * threads)))
        return
    order = _grouped(low, ids, first.shape[0])
    fields |= {"groups": order.groups, "pairs": order.pairs, "each": 1 if each else fixed(slots)}
    grain = max(1, min(tiles // 8, min(pairs, first.shape[0]) * tiles // (8 * threads)))
    kernel = (experts.experts_many if many else experts.experts_few)(target, shape)
    number = Cell(f"groups at {order.number:#x}", place=order.number)
    low.emit(kernel, fields, number, factor=tiles, grain=grain, guard=(cell_of(tokens), 1, most(tokens)))


def _grouped(low: Emitter, ids: Any, experts_count: int) -> Groups:
    """The order of the pairs of `ids`, made once for all products with them. Each ids have memory of their own: a
    thread may still ask for the number of groups of one while another thread orders the next."""
    found: Groups | None = low.prepared.get(id(ids))
    if found is None:
        tokens, slots = spec_of(ids).shape
        sizes = (8 * experts_count * 3 + routing.GROUP, 8, 4 * most(tokens) * fixed(slots))
        groups, count, pairs = (low.places.reserve(size) for size in sizes)
        found = low.prepared[id(ids)] = Groups(pairs, groups, count)
        fields = {"ids": low.at(ids), "tokens": cell_of(tokens), "k": fixed(slots), "experts": experts_count}
        fields |= {"pairs": pairs, "groups": groups, "count": count}
        guard = (cell_of(tokens), 1, most(tokens))
        low.emit(routing.group_pairs(low.places.target), fields, Cell("1", 1), guard=guard)
    return found
