"""Fusion rules. Each merges calls into one that a back-end runs with fewer passes over memory.

A fused call defines the same values as the calls that it replaces, so that their users stay as they are.
"""

from typing import Any

from sporelm import ops
from sporelm.ops import Call, Graph, Op, Value
from sporelm.ops.op import leaves
from sporelm.ops.quantize_rows import ROW_FORMATS
from sporelm.ops.spec import spec_of
from sporelm.plan.rewrite_rules import ValueUses, replace_calls, rule
from sporelm.tensor.dtype import F32

# Products, and the number of arguments after x that are weights or tuples of weights.
PRODUCTS = {ops.linear: 1, ops.linear_group: 1, ops.linear_silu_mul: 2, ops.linear_activate_mul: 2}
PRODUCTS |= {ops.linear_experts: 1, ops.linear_experts_silu_mul: 2}


@rule("add_rms_norm")
def fuse_add_rms_norm(graph: Graph) -> Graph:
    """Fuse an add whose sum feeds rms_norm into add_rms_norm. The sum stays available."""
    return _fuse_add_norm(graph, ops.rms_norm, ops.add_rms_norm)


@rule("add_layer_norm")
def fuse_add_layer_norm(graph: Graph) -> Graph:
    """Fuse an add whose sum feeds layer_norm into add_layer_norm. The sum stays available."""
    return _fuse_add_norm(graph, ops.layer_norm, ops.add_layer_norm)


def _fuse_add_norm(graph: Graph, norm: Op, fused: Op) -> Graph:
    uses, changes = ValueUses(graph), dict[int, Call | None]()
    for position, call in enumerate(graph.calls):
        if call.op is not norm:
            continue
        total, *weights = call.args
        source = uses.definition_by(total, "add")
        of_heads = bool(weights) and spec_of(weights[0]).shape != total.shape[1:]
        if source is None or source in changes or of_heads:
            continue
        if any(uses.definition_of(weight) >= source for weight in weights) or not uses.can_reorder(position, source):
            continue
        results = (*call.results, total)
        args = (*graph.calls[source].args, *weights)
        changes |= {source: Call(fused, args, call.options, results), position: None}
    return replace_calls(graph, changes)


@rule("linear_silu_mul")
def fuse_linear_silu_mul(graph: Graph) -> Graph:
    """Fuse silu_mul of two products of one x into linear_silu_mul.

    The products have no other user, no biases, and weights of one type.
    """
    return _fuse_gated(graph, ops.linear, ops.silu_mul, ops.linear_silu_mul)


@rule("linear_activate_mul")
def fuse_linear_activate_mul(graph: Graph) -> Graph:
    """Fuse the same with another activation function (GeGLU) into linear_activate_mul."""
    return _fuse_gated(graph, ops.linear, ops.activate_mul, ops.linear_activate_mul)


@rule("linear_experts_silu_mul")
def fuse_linear_experts_silu_mul(graph: Graph) -> Graph:
    """Fuse the same for experts' products, with equal shapes and ids, into linear_experts_silu_mul."""
    return _fuse_gated(graph, ops.linear_experts, ops.silu_mul, ops.linear_experts_silu_mul)


def _fuse_gated(graph: Graph, product: Op, gated: Op, fused: Op) -> Graph:
    uses, changes = ValueUses(graph), dict[int, Call | None]()
    for position, call in enumerate(graph.calls):
        if call.op is not gated:
            continue
        sources = [uses.definition_by(value, product.name) for value in call.args]
        if None in sources or sources[0] == sources[1]:
            continue
        gate, up = (graph.calls[source] for source in sources if source is not None)
        rest = [index for index in range(product.required) if index != 1]
        same = all(gate.args[index] is up.args[index] for index in rest)
        same = same and gate.results[0].spec == up.results[0].spec
        alike = same and _weight_type(gate) == _weight_type(up)
        alone = all(uses.is_only_used_by(value, position) for value in call.args)
        still = all(uses.can_move(source, position) for source in sources if source is not None)
        alike = alike and gate.options == up.options
        if alike and alone and still and not _bias_of(gate) and not _bias_of(up):
            args = (gate.args[0], gate.args[1], up.args[1], *gate.args[2 : product.required])
            changes |= {source: None for source in sources if source is not None}
            changes[position] = Call(fused, args, {**gate.options, **call.options}, call.results)
    return replace_calls(graph, changes)


@rule("linear_group")
def fuse_linear_group(graph: Graph) -> Graph:
    """Fuse two or more products of one x with weights of one type (query, key, value) into linear_group. Biases are
    kept."""
    uses, changes = ValueUses(graph), dict[int, Call | None]()
    groups: dict[tuple[int, Any], list[int]] = {}
    for position, call in enumerate(graph.calls):
        if call.op is not ops.linear:
            continue
        group = groups.setdefault((id(call.args[0]), _weight_type(call)), [])
        if not group or uses.can_move(position, group[0]):
            group.append(position)
    for group in groups.values():
        if len(group) < 2:
            continue
        calls = [graph.calls[position] for position in group]
        weights, biases = tuple(call.args[1] for call in calls), tuple(_bias_of(call) for call in calls)
        args: tuple[Any, ...] = (calls[0].args[0], weights)
        if any(bias is not None for bias in biases):
            args = (*args, biases)
        results = tuple(call.results[0] for call in calls)
        changes |= dict.fromkeys(group)
        changes[group[0]] = Call(ops.linear_group, args, {}, results)
    return replace_calls(graph, changes)


@rule("rope_store")
def fuse_rope_store(graph: Graph) -> Graph:
    """Fuse rotated queries, rotated keys and the keys' store into rope_store, if only the store uses the keys."""
    uses, changes = ValueUses(graph), dict[int, Call | None]()
    for position, call in enumerate(graph.calls):
        if call.op is not ops.store_kv:
            continue
        keys, values, cache, slots = call.args
        key_position = uses.definition_by(keys, "rope")
        if (
            key_position is None
            or not uses.is_only_used_by(keys, position)
            or not uses.can_move(key_position, position)
        ):
            continue
        key_call = graph.calls[key_position]
        query_position = _find_query_rope(graph, uses, changes, key_position, position)
        if query_position is None:
            continue
        query_call = graph.calls[query_position]
        args = (query_call.args[0], key_call.args[0], values, *key_call.args[1:], cache, slots)
        changes |= {key_position: None, query_position: None}
        changes[position] = Call(ops.rope_store, args, key_call.options, query_call.results)
    return replace_calls(graph, changes)


@rule("quantize_rows")
def share_quantized_rows(graph: Graph) -> Graph:
    """Round x once for all products that share it: one quantize_rows per distinct x and row format, right after x."""
    wanted: dict[int, list[str]] = {}
    for call in graph.calls:
        kind = _rounded_activation(call)
        if kind is not None and kind not in wanted.setdefault(id(call.args[0]), []):
            wanted[id(call.args[0])].append(kind)
    rounded: dict[tuple[int, str], Value] = {}
    calls: list[Call] = []

    def define(values: Any) -> None:
        for value in values:
            for kind in wanted.get(id(value), ()):
                (spec,) = ops.quantize_rows.results((value,), {"activation": kind})
                result = rounded[id(value), kind] = Value(value.graph, spec, f"{value.name}.{kind}")
                calls.append(Call(ops.quantize_rows, (value,), {"activation": kind}, (result,)))

    define(graph.inputs.values())
    for call in graph.calls:
        if (kind := _rounded_activation(call)) is not None:
            call = Call(call.op, (rounded[id(call.args[0]), kind], *call.args[1:]), call.options, call.results)
        calls.append(call)
        define(call.results)
    return graph.with_calls(calls)


def _weight_type(call: Call) -> Any:
    return spec_of(call.args[1]).dtype


def _bias_of(call: Call) -> Any:
    """Return the optional last argument of a product."""
    return call.args[-1] if len(call.args) > call.op.required else None


def _rounded_activation(call: Call) -> str | None:
    """Return the kind of rounded rows that a product's weights multiply, or None if x stays float32."""
    if call.op not in PRODUCTS or not isinstance(call.args[0], Value):
        return None
    weights = tuple(leaves(call.args[1 : 1 + PRODUCTS[call.op]]))
    activations = {getattr(spec_of(weight).dtype, "activation", "float") for weight in weights}
    (kind,) = activations if len(activations) == 1 else ("float",)
    return kind if call.args[0].dtype is F32 and kind in ROW_FORMATS else None


def _find_query_rope(graph: Graph, uses: ValueUses, taken: Any, key_position: int, store: int) -> int | None:
    """Return the position of the last rope before the store with the keys' positions, table and options, or None.

    Its result must not be used before the store.
    """
    key_call = graph.calls[key_position]
    for position in range(store - 1, -1, -1):
        call = graph.calls[position]
        if call.op is not ops.rope or position == key_position or position in taken:
            continue
        same = all(a is b for a, b in zip(call.args[1:], key_call.args[1:], strict=True))
        later = all(user > store for user in uses.users.get(id(call.results[0]), ()))
        if same and call.options == key_call.options and later and uses.can_move(position, store):
            return position
    return None
