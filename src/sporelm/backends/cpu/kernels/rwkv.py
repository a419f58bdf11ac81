"""RWKV's kernels: mixed rows, what a token brings to the states of the heads, and the states themselves.

What a token brings is worked out once for all tiles of a state: vectors of a head's channels, one kind after the other,
each kind `second` bytes further, then numbers of a head. A state's sweep over its rows does three things: it takes up
what the row before brought, and reads by two vectors of this one. What this row brings is added to the sums by products
of its own vectors, so that the state goes through the nearest cache once a row.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.norm import Sums, columns_of_head
from sporelm.backends.cpu.kernels.recurrent import Item, Shape, each_item, everywhere, zeros
from sporelm.backends.cpu.kernels.sequences import SEQUENCES
from sporelm.ops.rwkv import FASTEST, LEAST_LENGTH

BROUGHT = 5  # vectors: what decays, what is taken off, where, what is added, what reads


def mix_rows(target: Any, mixes: int, more: bool) -> Kernel:
    """An item is a row; `mixes` results."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row, k.range(f.vectors) as v:
            at = v * (4 * k.lanes)
            x, delta = (k.load(k.vf, k.at(p, row * f.stride), at) for p in (f.x, f.delta))
            for number in range(mixes):
                mix = k.load(k.vf, getattr(f, f"mix{number}"), at)
                if more:
                    mix = mix + k.load(k.vf, k.at(getattr(f, f"more{number}"), row * f.stride), at)
                k.store(k.fma(mix, delta, x), k.at(getattr(f, f"out{number}"), row * f.stride), at)

    names = ("mix", "more", "out") if more else ("mix", "out")
    text = " ".join(f"{name}{number}:p" for name in names for number in range(mixes))
    return Kernel(f"mix_rows_{mixes}{'_more' * more}", fields(f"x:p delta:p stride:i vectors:i {text}"), body)


def blend(target: Any) -> Kernel:
    """An item is a row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row, k.range(f.vectors) as v:
            at = v * (4 * k.lanes)
            x, y, gate = (k.load(k.vf, k.at(p, row * f.stride), at) for p in (f.x, f.y, f.gate))
            k.store(k.fma(y - x, sigmoid(k, gate), x), k.at(f.out, row * f.stride), at)

    return Kernel("blend", fields("x:p y:p gate:p out:p stride:i vectors:i"), body)


def sigmoid(k: Builder, x: Val) -> Val:
    return k.const(x.type, 1.0) / (k.exp(-x) + 1.0)


def wkv7_brought(target: Any, dim: int, value_dim: int) -> Kernel:
    """What each token brings to the heads' states, and what it adds by itself. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.brought, token * f.brought_stride)
            places = [k.at(out, at + f.second * number) for number in range(BROUGHT)]
            r, w, key, a = (k.at(p, token * f.stride + at) for p in (f.r, f.w, f.k, f.a))
            removed, kept, bonus = k.at(f.removed, at), k.at(f.kept, at), k.at(f.bonus, head * f.bonus_stride)
            squares = Sums(k)
            for kind, place in columns_of_head(k, dim):
                u = k.load(kind, key, place) * k.load(kind, removed, place)
                squares.add(kind, u * u)
            length, least = k.sqrt(squares.total()), k.const(f32, LEAST_LENGTH)
            scale = k.const(f32, 1.0) / k.select(length < least, least, length)
            taken, added, alone = Sums(k), Sums(k), Sums(k)
            for kind, place in columns_of_head(k, dim):
                x, q = k.load(kind, key, place), k.load(kind, r, place)
                rate = sigmoid(k, k.load(kind, a, place))
                decay = k.exp(sigmoid(k, k.load(kind, w, place)) * -FASTEST)
                unit = x * k.load(kind, removed, place) * (k.splat(scale) if kind is k.vf else scale)
                less, more = -(unit * rate), x * k.fma(rate - 1.0, k.load(kind, kept, place), k.const(kind, 1.0))
                for value, base in zip((decay, unit, less, more, q * decay), places, strict=True):
                    k.store(value, base, place)
                taken.add(kind, q * less)
                added.add(kind, q * more)
                alone.add(kind, q * more * k.load(kind, bonus, place))
            numbers = k.at(out, f.second * BROUGHT + head * 8)
            for number, total in enumerate((taken, added)):
                k.store(total.total(), numbers, 4 * number)
            own, share = token * f.v_stride + head * (4 * value_dim), alone.total()
            for kind, place in columns_of_head(k, value_dim):
                factor = k.splat(share) if kind is k.vf else share
                k.store(k.load(kind, k.at(f.v, own), place) * factor, k.at(f.alone, own), place)

    text = "r:p w:p k:p a:p stride:i v:p alone:p v_stride:i removed:p kept:p bonus:p bonus_stride:i heads:i"
    text += " brought:p brought_stride:i second:i"
    return Kernel(f"wkv7_brought_{dim}_{value_dim}", fields(text), body)


def wkv7(target: Any, shape: Shape) -> Kernel:
    """The rule, of what the kernel above made. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_item(k, f, shape, first, last, scratch) as item:
            _rows(k, f, item)

    text = f"v:p out:p v_stride:i shared:i heads:i brought:p brought_stride:i second:i {SEQUENCES}"
    return Kernel(f"wkv7_{shape.name}", fields(text), body, scratch=shape.scratch(target))


def _rows(k: Builder, f: Any, item: Item) -> None:
    known, said, taken, values = (zeros(k, item.count) for _ in range(4))  # the last two of the row before

    def vectors(token: Val) -> list[Val]:
        base = k.at(f.brought, token * f.brought_stride + item.head * (4 * item.shape.rows))
        return [k.at(base, f.second * number) for number in range(BROUGHT)]

    def settled(at: Val, state: list[Val], brought: list[Val]) -> list[Val]:
        decay, _, less, more, _ = (everywhere(k, place, at) for place in brought)
        return [
            k.fma(s, decay, k.fma(less, u.value, more * v.value)) for s, u, v in zip(state, taken, values, strict=True)
        ]

    def row(token: Val, begins: bool) -> None:
        own, before = vectors(token), [] if begins else vectors(token - 1)
        for total in (*known, *said):
            total.set(k.const(k.vf, 0))

        def change(at: Val, state: list[Val]) -> list[Val] | None:
            found = state if begins else settled(at, state, before)
            for totals, place in ((known, own[1]), (said, own[4])):
                factor = everywhere(k, place, at)
                for total, s in zip(totals, found, strict=True):
                    total.set(k.fma(factor, s, total.value))
            return None if begins else found

        item.sweep(change)
        numbers = k.at(f.brought, token * f.brought_stride + f.second * BROUGHT + item.head * 8)
        less, more = (k.splat(k.load(f32, numbers, 4 * number)) for number in range(2))
        place = token * f.v_stride + item.head * (4 * item.shape.columns) + item.at
        for v, value in zip(values, item.load(k.at(f.v, place)), strict=True):
            v.set(value)
        for u, total in zip(taken, known, strict=True):
            u.set(total.value)
        made = zip(said, taken, values, strict=True)
        item.store([k.fma(more, v.value, k.fma(less, u.value, s.value)) for s, u, v in made], k.at(f.out, place))

    row(item.start, True)
    with k.range(item.start + 1, item.stop) as token:
        row(token, False)
    last = vectors(item.stop - 1)
    item.sweep(lambda at, state: settled(at, state, last))


def wkv6_brought(target: Any, dim: int) -> Kernel:
    """How much each row of the heads' states decays at each token, and what the token's own key counts. An item is a
    token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.brought, token * f.brought_stride)
            r, w, key = (k.at(p, token * f.stride + at) for p in (f.r, f.w, f.k))
            bonus, alone = k.at(f.bonus, head * f.bonus_stride), Sums(k)
            for kind, place in columns_of_head(k, dim):
                k.store(k.exp(-k.exp(k.load(kind, w, place))), k.at(out, at), place)
                alone.add(kind, k.load(kind, r, place) * k.load(kind, bonus, place) * k.load(kind, key, place))
            k.store(alone.total(), out, f.second + head * 4)

    text = "r:p w:p k:p stride:i bonus:p bonus_stride:i heads:i brought:p brought_stride:i second:i"
    return Kernel(f"wkv6_brought_{dim}", fields(text), body)


def wkv6(target: Any, shape: Shape) -> Kernel:
    """RWKV-6's state, of what the kernel above made. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_item(k, f, shape, first, last, scratch) as item, k.range(item.start, item.stop) as token:
            _row6(k, f, item, token)

    text = "r:p k:p stride:i v:p out:p v_stride:i shared:i heads:i brought:p brought_stride:i second:i"
    return Kernel(f"wkv6_{shape.name}", fields(f"{text} {SEQUENCES}"), body, scratch=shape.scratch(target))


def _row6(k: Builder, f: Any, item: Item, token: Val) -> None:
    own, brought = item.head * (4 * item.shape.rows), k.at(f.brought, token * f.brought_stride)
    read, write = (k.at(p, token * f.stride + own) for p in (f.r, f.k))
    place = token * f.v_stride + item.head * (4 * item.shape.columns) + item.at
    values, sums = item.load(k.at(f.v, place)), zeros(k, item.count)

    def change(at: Val, state: list[Val]) -> list[Val]:
        r, key, decay = (everywhere(k, base, at) for base in (read, write, k.at(brought, own)))
        for total, s in zip(sums, state, strict=True):
            total.set(k.fma(r, s, total.value))
        return [k.fma(s, decay, key * v) for s, v in zip(state, values, strict=True)]

    item.sweep(change)
    alone = k.splat(k.load(f32, brought, f.second + item.head * 4))
    made = [k.fma(alone, v, total.value) for v, total in zip(values, sums, strict=True)]
    item.store(made, k.at(f.out, place))


def grouped_brought(target: Any, dim: int) -> Kernel:
    """How much each row of the heads' states decays at each token, and what is added to it. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.brought, token * f.brought_stride)
            own = head // (f.heads // f.shared) * (4 * dim)
            w, key = k.at(f.w, token * f.stride + at), k.at(f.k, token * f.k_stride + own)
            for kind, place in columns_of_head(k, dim):
                decay = k.exp(-k.exp(k.load(kind, w, place)))
                k.store(decay, k.at(out, at), place)
                added = k.load(kind, key, place) * (k.const(kind, 1.0) - decay)
                k.store(added, k.at(out, at + f.second), place)

    text = "w:p stride:i k:p k_stride:i heads:i shared:i brought:p brought_stride:i second:i"
    return Kernel(f"grouped_brought_{dim}", fields(text), body)


def gated_linear_attention(target: Any, shape: Shape) -> Kernel:
    """States of what the kernel above made. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        columns = 4 * shape.columns
        with each_item(k, f, shape, first, last, scratch) as item:
            own, group = item.head * (4 * shape.rows), item.shared * columns + item.at
            with k.range(item.start, item.stop) as token:
                read, decays = k.at(f.r, token * f.stride + own), k.at(f.brought, token * f.brought_stride + own)
                values, sums = item.load(k.at(f.v, token * f.v_stride + group)), zeros(k, item.count)

                def change(at: Val, state: list[Val]) -> list[Val]:
                    r, decay, key = (everywhere(k, p, at) for p in (read, decays, k.at(decays, f.second)))
                    found = [k.fma(s, decay, key * v) for s, v in zip(state, values, strict=True)]
                    for total, s in zip(sums, found, strict=True):
                        total.set(k.fma(r, s, total.value))
                    return found

                item.sweep(change)
                place = k.at(f.out, token * f.out_stride + item.head * columns + item.at)
                item.store([total.value * k.splat(f.scale) for total in sums], place)

    text = "r:p stride:i v:p v_stride:i out:p out_stride:i scale:f shared:i heads:i brought:p brought_stride:i second:i"
    name = f"gated_linear_attention_{shape.name}"
    return Kernel(name, fields(f"{text} {SEQUENCES}"), body, scratch=shape.scratch(target))
