"""The gated delta rule: a state that decays, is read by a key, corrected, and read by a query, row by row.

A row reads the state by its key and by its query in one pass; its addition is stored by the pass of the next row: (S
decayed + k u) q = (S q) decayed + (k q) u. If each row of the state has its own decay, the key and query are multiplied
by the decays instead.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import (
    StateShape,
    StateTile,
    broadcast,
    each_state_tile,
    gate_kernel,
    softplus,
    zero_vectors,
)
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS


def delta_gates(target: Any, *, bounded: bool) -> Kernel:
    """Compute each head's decay and share of the new value at each token."""

    def pair(k: Builder, f: Any, token: Val, at: Val, decay: Val) -> tuple[Val, Val]:
        alpha, beta = (k.load(k.vf, k.at(x, token * f.stride), at) for x in (f.alpha, f.beta))
        kept = _decay_factor(k, decay, alpha + k.load(k.vf, f.bias, at), k.splat(f.min_log_decay) if bounded else None)
        return kept, k.splat(f.max_beta) / (k.exp(-beta) + 1.0)

    return gate_kernel(f"delta_gates{'_bounded' * bounded}", "alpha:p beta:p max_beta:f min_log_decay:f", pair)


def _decay_factor(k: Builder, decay: Val, x: Val, min_log_decay: Val | None) -> Val:
    """Return the decay of a state, at least e to the power of `min_log_decay` if that is given."""
    return k.exp(decay * softplus(k, x)) if min_log_decay is None else k.exp(min_log_decay / (k.exp(decay * x) + 1.0))


def delta_gates_by_row(target: Any, rows: int, *, bounded: bool) -> Kernel:
    """Compute the same with a decay for each row of a state. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        whole = rows // k.lanes * k.lanes
        spans = [(k.vf, 0, whole, k.lanes), (f32, whole, rows, 1)]
        with k.range(first, last) as token:
            out, alpha = k.at(f.gates, token * f.gates_stride), k.at(f.alpha, token * f.stride)
            with k.range(f.heads) as head:
                decay, start = k.load(f32, f.decay, head * 4), head * (4 * rows)
                for kind, low, high, step in spans:
                    factor, min_log_decay = (
                        each if kind is f32 else k.splat(each) for each in (decay, f.min_log_decay)
                    )
                    with k.range(low, high, step) as column:
                        at = start + column * 4
                        x = k.load(kind, alpha, at) + k.load(kind, f.bias, at)
                        k.store(_decay_factor(k, factor, x, min_log_decay if bounded else None), out, at)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                beta = k.load(k.vf, k.at(f.beta, token * f.beta_stride), at)
                k.store(k.splat(f.max_beta) / (k.exp(-beta) + 1.0), out, at + f.second)

    text = "alpha:p stride:i beta:p beta_stride:i max_beta:f min_log_decay:f decay:p bias:p heads:i"
    text += " gates:p gates_stride:i second:i"
    return Kernel(f"delta_gates_{rows}{'_bounded' * bounded}", parse_fields(f"{text} vectors:i"), body)


def gated_delta_rule(target: Any, shape: StateShape) -> Kernel:
    """Apply the rule, given decays and shares. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_state_tile(k, f, shape, first, last, scratch) as item:
            _rows(k, f, item)

    text = "x:p x_stride:i keys:p keys_stride:i values:p values_stride:i gates:p gates_stride:i second:i"
    text += " shared:i heads:i out:p out_stride:i scale:f eps:f"
    return Kernel(
        f"gated_delta_{shape.name}", parse_fields(f"{text} {SEQUENCE_FIELDS}"), body, scratch=shape.scratch(target)
    )


def _rows(k: Builder, f: Any, item: StateTile) -> None:
    added, kept = zero_vectors(k, item.count), k.zero(f32)  # the previous row's addition, and the decay of the state
    keys, sums = [item.vectors[0], item.vectors[1]], [zero_vectors(k, item.count) for _ in range(2)]
    query, head, by_row = item.vectors[2], item.head * (4 * item.shape.columns) + item.at, item.shape.by_row

    def decays(token: Val) -> Val:
        """Return the address of the decays of each row."""
        return k.at(f.gates, token * f.gates_stride + item.head * (4 * item.shape.rows))

    def settled(at: Val, key: Val, state: list[Val], before: Val) -> list[Val]:
        factor, decay = broadcast(k, key, at), broadcast(k, before, at) if by_row else k.splat(kept.value)
        return [k.fma(s, decay, factor * u.value) for s, u in zip(state, added, strict=True)]

    def read(at: Val, key: Val, state: list[Val]) -> None:
        for totals, place in zip(sums, (key, query), strict=True):
            factor = broadcast(k, place, at)
            for total, s in zip(totals, state, strict=True):
                total.set(k.fma(factor, s, total.value))

    def row(token: Val, key: Val, before: Val | None) -> None:
        overlap = _normalize_directions(k, f, item, token, key, query, decays(token) if by_row else None)
        for total in [*sums[0], *sums[1]]:
            total.set(k.const(k.vf, 0))

        def change(at: Val, state: list[Val]) -> list[Val] | None:
            found = state if before is None else settled(at, before, state, decays(token - 1))
            read(at, item.vectors[3] if by_row else key, found)
            return None if before is None else found

        item.sweep(change)
        gates = k.at(f.gates, token * f.gates_stride)
        share = k.splat(k.load(f32, gates, item.head * 4 + f.second))
        if not by_row:
            kept.set(k.load(f32, gates, item.head * 4))
        factor = None if by_row else k.splat(kept.value)
        values, result = item.load(k.at(f.values, token * f.values_stride + head)), []
        for value, *found, u in zip(values, *sums, added, strict=True):
            known, said = (total.value if factor is None else total.value * factor for total in found)
            u.set((value - known) * share)
            result.append(k.fma(k.splat(overlap), u.value, said))
        item.store(result, k.at(f.out, token * f.out_stride + head))

    row(item.start, keys[0], None)
    with k.range(item.start + 1, item.stop) as token:
        odd = (token - item.start) & 1
        here, there = (k.select(odd.equals(n), keys[1], keys[0]) for n in (1, 0))
        row(token, here, there)
    final = k.select(((item.stop - item.start) & 1).equals(1), keys[0], keys[1])
    last = decays(item.stop - 1)
    item.sweep(lambda at, state: settled(at, final, state, last))


def _normalize_directions(
    k: Builder, f: Any, item: StateTile, token: Val, key: Val, query: Val, decays: Val | None
) -> Val:
    """Normalize the key and the query of a row, scale the query, and return their product.

    With decays, the key (in the item's last vector) and the query (in `query`) are multiplied by them for reading.
    """
    rows, at = item.shape.rows, item.shared * (4 * item.shape.rows)
    places = [k.at(f.x, token * f.x_stride + at), k.at(f.keys, token * f.keys_stride + at)]  # query, key
    whole = rows // k.lanes * k.lanes
    kinds = [(k.vf, at * 4) for at in range(0, whole, k.lanes)] + [(f32, at * 4) for at in range(whole, rows)]
    sums: dict[Any, list[Val]] = {}
    for kind, at in kinds:
        q, y = (k.load(kind, place, at) for place in places)
        before = sums.get(kind) or [k.const(kind, 0)] * 3
        sums[kind] = [k.fma(a, b, total) for (a, b), total in zip(((q, q), (y, y), (q, y)), before, strict=True)]
    totals = [k.const(f32, 0)] * 3
    for kind, found in sums.items():
        parts = found if kind is f32 else [k.sum(each) for each in found]
        totals = [a + b for a, b in zip(totals, parts, strict=True)]
    one = k.const(f32, 1.0)
    factors = [one / k.sqrt(total + f.eps) for total in totals[:2]]
    factors[0] = factors[0] * f.scale
    for kind, at in kinds:
        q, y = (
            k.load(kind, place, at) * (factor if kind is f32 else k.splat(factor))
            for place, factor in zip(places, factors, strict=True)
        )
        if decays is not None:
            kept = k.load(kind, decays, at)
            k.store(y * kept, item.vectors[3], at)
            q = q * kept
        k.store(q, query, at)
        k.store(y, key, at)
    return totals[2] * factors[0] * factors[1]
