"""RWKV's kernels: each token's update of the states of the heads, and the states themselves.

A token's update is computed once for all tiles of a state: vectors of a head's channels, one kind after the other, each
kind `second` bytes further, then numbers of a head. One sweep over the rows of a state applies the update of the
previous token and computes two products with vectors of this token. The contribution of this token is added to the sums
by products of its own vectors. So the state passes through the L1 cache once per token.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.norm import RowSum, each_column
from sporelm.backends.cpu.kernels.recurrent_state import StateShape, StateTile, broadcast, each_state_tile, zero_vectors
from sporelm.backends.cpu.kernels.rwkv_mixing import sigmoid
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS
from sporelm.ops.wkv import MAX_DECAY, MIN_LENGTH

NUM_INPUTS = 5  # vectors: decay, removal vector, removal key, addition, receptance


def wkv7_inputs(target: Any, dim: int, value_dim: int) -> Kernel:
    """Compute each token's update of the heads' states, and its own contribution. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.prepared, token * f.prepared_stride)
            places = [k.at(out, at + f.second * number) for number in range(NUM_INPUTS)]
            r, w, key, a = (k.at(p, token * f.stride + at) for p in (f.r, f.w, f.k, f.a))
            k_k, k_a, bonus = k.at(f.k_k, at), k.at(f.k_a, at), k.at(f.bonus, head * f.bonus_stride)
            squares = RowSum(k)
            for kind, place in each_column(k, dim):
                u = k.load(kind, key, place) * k.load(kind, k_k, place)
                squares.add(kind, u * u)
            length, least = k.sqrt(squares.total()), k.const(f32, MIN_LENGTH)
            scale = k.const(f32, 1.0) / k.select(length < least, least, length)
            taken, added, alone = RowSum(k), RowSum(k), RowSum(k)
            for kind, place in each_column(k, dim):
                x, q = k.load(kind, key, place), k.load(kind, r, place)
                rate = sigmoid(k, k.load(kind, a, place))
                decay = k.exp(sigmoid(k, k.load(kind, w, place)) * -MAX_DECAY)
                unit = x * k.load(kind, k_k, place) * (k.splat(scale) if kind is k.vf else scale)
                less, more = -(unit * rate), x * k.fma(rate - 1.0, k.load(kind, k_a, place), k.const(kind, 1.0))
                for value, base in zip((decay, unit, less, more, q * decay), places, strict=True):
                    k.store(value, base, place)
                taken.add(kind, q * less)
                added.add(kind, q * more)
                alone.add(kind, q * more * k.load(kind, bonus, place))
            numbers = k.at(out, f.second * NUM_INPUTS + head * 8)
            for number, total in enumerate((taken, added)):
                k.store(total.total(), numbers, 4 * number)
            own, share = token * f.v_stride + head * (4 * value_dim), alone.total()
            for kind, place in each_column(k, value_dim):
                factor = k.splat(share) if kind is k.vf else share
                k.store(k.load(kind, k.at(f.v, own), place) * factor, k.at(f.alone, own), place)

    text = "r:p w:p k:p a:p stride:i v:p alone:p v_stride:i k_k:p k_a:p bonus:p bonus_stride:i heads:i"
    text += " prepared:p prepared_stride:i second:i"
    return Kernel(f"wkv7_prepared_{dim}_{value_dim}", parse_fields(text), body)


def wkv7(target: Any, shape: StateShape) -> Kernel:
    """Apply the rule to the updates that the previous kernel computed. An item is a tile of a head's state of a
    sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_state_tile(k, f, shape, first, last, scratch) as item:
            _rows(k, f, item)

    text = f"v:p out:p v_stride:i shared:i heads:i prepared:p prepared_stride:i second:i {SEQUENCE_FIELDS}"
    return Kernel(f"wkv7_{shape.name}", parse_fields(text), body, scratch=shape.scratch(target))


def _rows(k: Builder, f: Any, item: StateTile) -> None:
    removals, readouts = (zero_vectors(k, item.count) for _ in range(2))
    previous_removals, values = (zero_vectors(k, item.count) for _ in range(2))  # of the previous row

    def vectors(token: Val) -> list[Val]:
        base = k.at(f.prepared, token * f.prepared_stride + item.head * (4 * item.shape.rows))
        return [k.at(base, f.second * number) for number in range(NUM_INPUTS)]

    def settled(at: Val, state: list[Val], prepared: list[Val]) -> list[Val]:
        decay, _, less, more, _ = (broadcast(k, place, at) for place in prepared)
        return [
            k.fma(s, decay, k.fma(less, u.value, more * v.value))
            for s, u, v in zip(state, previous_removals, values, strict=True)
        ]

    def row(token: Val, begins: bool) -> None:
        own, before = vectors(token), [] if begins else vectors(token - 1)
        for total in (*removals, *readouts):
            total.set(k.const(k.vf, 0))

        def change(at: Val, state: list[Val]) -> list[Val] | None:
            found = state if begins else settled(at, state, before)
            for totals, place in ((removals, own[1]), (readouts, own[4])):
                factor = broadcast(k, place, at)
                for total, s in zip(totals, found, strict=True):
                    total.set(k.fma(factor, s, total.value))
            return None if begins else found

        item.sweep(change)
        numbers = k.at(f.prepared, token * f.prepared_stride + f.second * NUM_INPUTS + item.head * 8)
        less, more = (k.splat(k.load(f32, numbers, 4 * number)) for number in range(2))
        place = token * f.v_stride + item.head * (4 * item.shape.columns) + item.at
        for v, value in zip(values, item.load(k.at(f.v, place)), strict=True):
            v.set(value)
        for u, total in zip(previous_removals, removals, strict=True):
            u.set(total.value)
        made = zip(readouts, previous_removals, values, strict=True)
        item.store([k.fma(more, v.value, k.fma(less, u.value, s.value)) for s, u, v in made], k.at(f.out, place))

    row(item.start, True)
    with k.range(item.start + 1, item.stop) as token:
        row(token, False)
    last = vectors(item.stop - 1)
    item.sweep(lambda at, state: settled(at, state, last))


def wkv6_inputs(target: Any, dim: int) -> Kernel:
    """Compute the decay of each row of the heads' states at each token, and the weight of the token's own key. An
    item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.prepared, token * f.prepared_stride)
            r, w, key = (k.at(p, token * f.stride + at) for p in (f.r, f.w, f.k))
            bonus, alone = k.at(f.bonus, head * f.bonus_stride), RowSum(k)
            for kind, place in each_column(k, dim):
                k.store(k.exp(-k.exp(k.load(kind, w, place))), k.at(out, at), place)
                alone.add(kind, k.load(kind, r, place) * k.load(kind, bonus, place) * k.load(kind, key, place))
            k.store(alone.total(), out, f.second + head * 4)

    text = "r:p w:p k:p stride:i bonus:p bonus_stride:i heads:i prepared:p prepared_stride:i second:i"
    return Kernel(f"wkv6_prepared_{dim}", parse_fields(text), body)


def wkv6(target: Any, shape: StateShape) -> Kernel:
    """Update RWKV-6's state with the output of the previous kernel. An item is a tile of a head's state of a
    sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_state_tile(k, f, shape, first, last, scratch) as item, k.range(item.start, item.stop) as token:
            _row6(k, f, item, token)

    text = "r:p k:p stride:i v:p out:p v_stride:i shared:i heads:i prepared:p prepared_stride:i second:i"
    return Kernel(f"wkv6_{shape.name}", parse_fields(f"{text} {SEQUENCE_FIELDS}"), body, scratch=shape.scratch(target))


def _row6(k: Builder, f: Any, item: StateTile, token: Val) -> None:
    own, prepared = item.head * (4 * item.shape.rows), k.at(f.prepared, token * f.prepared_stride)
    read, write = (k.at(p, token * f.stride + own) for p in (f.r, f.k))
    place = token * f.v_stride + item.head * (4 * item.shape.columns) + item.at
    values, sums = item.load(k.at(f.v, place)), zero_vectors(k, item.count)

    def change(at: Val, state: list[Val]) -> list[Val]:
        r, key, decay = (broadcast(k, base, at) for base in (read, write, k.at(prepared, own)))
        for total, s in zip(sums, state, strict=True):
            total.set(k.fma(r, s, total.value))
        return [k.fma(s, decay, key * v) for s, v in zip(state, values, strict=True)]

    item.sweep(change)
    alone = k.splat(k.load(f32, prepared, f.second + item.head * 4))
    made = [k.fma(alone, v, total.value) for v, total in zip(values, sums, strict=True)]
    item.store(made, k.at(f.out, place))
