"""Lowering of products with the matrices of experts, and of their weighted sum."""

from typing import Any, NamedTuple

from sporelm import ops
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.kernels import expert_routing, linear_experts
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_extents, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.runtime.tensor_storage import PackedExperts
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.tensor.dtype import F32


class PairGroups(NamedTuple):
    """Addresses of the grouped pairs of a step: the pairs, the groups, and the number of groups."""

    pairs: int
    groups: int
    number: int


@lowers(ops.linear_experts)
def _lower_linear_experts(emitter: Emitter, call: Call) -> None:
    x, weight, ids, *rest = call.args
    _emit_product(emitter, call, x, [weight], ids, rest[0] if rest else None)


@lowers(ops.linear_experts_silu_mul)
def _lower_linear_experts_silu_mul(emitter: Emitter, call: Call) -> None:
    x, gate, up, ids = call.args
    _emit_product(emitter, call, x, [gate, up], ids, None)


@lowers(ops.combine_experts, rowwise=True)
def _lower_combine_experts(emitter: Emitter, call: Call) -> None:
    y, weights, *rest = call.args
    (out,) = call.results
    tokens, slots = spec_of(weights).shape
    fields = {
        "y": emitter.address(y),
        "y_stride": row_stride(y),
        "slots": require_fixed(slots),
        "out": emitter.address(out),
    }
    fields |= {
        "weights": emitter.address(weights),
        "weights_stride": row_stride(weights),
        "out_stride": row_stride(out),
    }
    fields["blocks"] = -(-row_extents(out)[2] // linear_experts.VALUES_PER_PASS)
    bias = rest[0] if rest else None
    fields |= {} if bias is None else {"bias": emitter.address(bias)}
    kernel = linear_experts.combine_experts(emitter.context.target, bias=bias is not None)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


def _packed_experts(weight: Any) -> PackedExperts:
    if not isinstance(weight.storage, PackedExperts):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    return weight.storage


def _emit_product(emitter: Emitter, call: Call, x: Any, weights: list[Any], ids: Any, bias: Any) -> None:
    """Emit one token's experts one after the other, or groups of pairs in the way that suits the step's size."""
    packed = [_packed_experts(weight) for weight in weights]
    first, target, threads = packed[0], emitter.context.target, emitter.context.threads
    kind, given = first.kind, spec_of(x)
    if given.dtype.name != (kind.activation if isinstance(kind, IntegerPanels) else F32.name):
        raise BackendError(
            f"weights in {kind.name} need activations rounded to int8 (got {given}). Apply the rule quantize_rows."
        )
    (tokens, slots), (out,) = spec_of(ids).shape, call.results
    each, shape = (
        len(given.shape) == 3,
        LinearShape(kind, len(packed), bias is not None, "silu" if len(packed) == 2 else ""),
    )
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "width": first.width,
        "panels": first.panels,
    }
    fields |= {"panel_bytes": first.panel_bytes, "expert_bytes": first.expert_bytes, "experts": first.shape[0]}
    fields |= {"out": emitter.address(out), "out_stride": row_stride(out)}
    fields |= {f"weight{number}": weight.address for number, weight in enumerate(packed)}
    if bias is not None:
        fields |= {"bias": emitter.address(bias), "bias_stride": row_stride(bias)}
    pairs = max_extent(tokens) * require_fixed(slots)
    many = pairs > target.tiles.few_tokens_of(kind)  # as many as one expert may have
    tiles = linear_experts.tiles_of(shape, target, first.panels, many=many)
    start = call.options.get("first")
    is_part, chosen = start is not None, emitter.address(ids)
    if start is not None:
        chosen = _local_ids(emitter, ids, start, first.shape[0])
        zeros = {"ids": chosen, "out": emitter.address(out), "out_stride": row_stride(out)}
        emitter.emit(linear_experts.zero_rows(target), zeros, extent_cell(tokens), factor=require_fixed(slots), grain=8)
    if max_extent(tokens) == 1:
        fields |= {
            "ids": chosen,
            "slots": require_fixed(slots),
            "slot_stride": row_stride(x) if each else 0,
        }
        total = tiles * require_fixed(slots)
        kernel = linear_experts.experts_one(target, shape, is_part=is_part)
        emitter.emit(kernel, fields, extent_cell(tokens), factor=total, grain=max(1, total // (8 * threads)))
        return
    order = _group_pairs(emitter, ids, start, chosen, first.shape[0])
    fields |= {"groups": order.groups, "pairs": order.pairs, "each": 1 if each else require_fixed(slots)}
    grain = max(1, min(tiles // 8, min(pairs, first.shape[0]) * tiles // (8 * threads)))
    kernel = (linear_experts.experts_many if many else linear_experts.experts_few)(target, shape)
    number = Cell(f"groups at {order.number:#x}", address=order.number)
    emitter.emit(kernel, fields, number, factor=tiles, grain=grain, guard=(extent_cell(tokens), 1, max_extent(tokens)))


def _local_ids(emitter: Emitter, ids: Any, first: int, count: int) -> int:
    """Emit, once, the numbers of `ids` among `count` experts from `first` on, -1 for others. Return their address."""
    found: int | None = emitter.shared_results.get((id(ids), first))
    if found is None:
        tokens, slots = spec_of(ids).shape
        found = emitter.context.reserve(4 * max_extent(tokens) * require_fixed(slots))
        emitter.shared_results[id(ids), first] = found
        fields = {"ids": emitter.address(ids), "first": first, "experts": count, "out": found}
        kernel = expert_routing.local_experts(emitter.context.target)
        emitter.emit(kernel, fields, extent_cell(tokens), factor=require_fixed(slots), grain=64)
    return found


def _group_pairs(emitter: Emitter, ids: Any, first: int | None, chosen: int, experts_count: int) -> PairGroups:
    """Emit the grouping of the pairs of `ids`, once for all products with these ids and experts from `first` on. Their
    numbers among those experts lie at the address `chosen`.

    Each `ids` has memory of its own: a thread may still read the number of groups of one while another thread groups
    the next.
    """
    found: PairGroups | None = emitter.shared_results.get(("groups", id(ids), first))
    if found is None:
        tokens, slots = spec_of(ids).shape
        sizes = (8 * experts_count * 3 + expert_routing.GROUP_BYTES, 8, 4 * max_extent(tokens) * require_fixed(slots))
        groups, count, pairs = (emitter.context.reserve(size) for size in sizes)
        found = emitter.shared_results["groups", id(ids), first] = PairGroups(pairs, groups, count)
        fields = {
            "ids": chosen,
            "tokens": extent_cell(tokens),
            "k": require_fixed(slots),
            "experts": experts_count,
        }
        fields |= {"pairs": pairs, "groups": groups, "count": count}
        guard = (extent_cell(tokens), 1, max_extent(tokens))
        emitter.emit(
            expert_routing.group_pairs(emitter.context.target, is_part=first is not None),
            fields,
            Cell("1", 1),
            guard=guard,
        )
    return found
