"""Argmax and top-k of rows of logits."""

from typing import Any

from llvmlite.ir import IntType

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import parse_fields


def argmax(target: Any) -> Kernel:
    """Find the lowest id of the greatest logit, -1 if the row has NaN. An item is one row.

    There are two passes, each with several independent vectors: the greatest value, then its first position.
    """

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            row = k.at(f.x, item * f.stride)
            peak, broken = _find_greatest(k, row, f.vocab)
            place, wide = k.var(k.index(0)), k.splat(peak)
            block = 4 * k.lanes
            whole = f.vocab // block * block

            def absent() -> Val:
                hits = [(k.load(k.vf, row, place.value * 4 + 4 * k.lanes * v)).equals(wide).raw for v in range(4)]
                hit = k.ir.or_(k.ir.or_(hits[0], hits[1]), k.ir.or_(hits[2], hits[3]))
                return Val(k, hit).bits(IntType(k.lanes)).equals(0)

            with k.loop_while(lambda: k.both(place.value < whole, absent)):
                place.set(place.value + block)
            end = k.min(f.vocab - 1, place.value + block)

            def other() -> Val:
                return k.load(f32, row, place.value * 4).differs(peak)

            with k.loop_while(lambda: k.both(place.value < end, other)):
                place.set(place.value + 1)
            k.store(k.select(broken, k.const(i32, -1), place.value.trunc(i32)), f.out, item * 4)

    return Kernel("argmax", parse_fields("x:p stride:i vocab:i out:p"), body)


def _find_greatest(k: Builder, row: Val, count: Val) -> tuple[Val, Val]:
    """Return the greatest value of a row, and whether the row holds NaN."""
    tops = [k.var(k.const(k.vf, float("-inf"))) for _ in range(4)]
    odd = k.zero(k.vi)
    block = 4 * k.lanes
    whole = count // block * block

    def meet(top: Any, x: Val) -> None:
        top.set(k.fmax(x, top.value))
        odd.set(odd.value | k.select(x.is_nan(), k.const(k.vi, 1), k.const(k.vi, 0)))

    with k.range(0, whole, block) as at:
        for v, top in enumerate(tops):
            meet(top, k.load(k.vf, row, at * 4 + 4 * k.lanes * v))
    with k.range(whole, count) as at:
        meet(tops[0], k.splat(k.load(f32, row, at * 4)))
    best = k.fmax(k.fmax(tops[0].value, tops[1].value), k.fmax(tops[2].value, tops[3].value))
    return k.fold(best, k.fmax), k.fold(odd.value, lambda a, b: a | b).differs(0)


def top_k(target: Any) -> Kernel:
    """Find the `k` greatest logits in descending order, lower ids first among equals, by insertion. An item is one
    row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            row = k.at(f.x, item * f.stride)
            values, ids = k.at(f.values, item * f.values_stride), k.at(f.ids, item * f.ids_stride)
            with k.range(f.k) as at:
                k.store(k.const(f32, float("-inf")), values, at * 4)
                k.store(k.const(i32, 0x7FFFFFFF), ids, at * 4)
            whole = f.vocab // k.lanes * k.lanes
            with k.range(0, whole, k.lanes) as start:
                least = k.splat(k.load(f32, values, (f.k - 1) * 4))
                x = k.load(k.vf, row, start * 4)
                possible = Val(k, k.ir.fcmp_unordered(">=", x.raw, least.raw))
                flags = k.fold(k.select(possible, k.const(k.vi, 1), k.const(k.vi, 0)), lambda a, b: a | b)
                with k.when(flags.differs(0)), k.range(start, start + k.lanes) as at:
                    _insert(k, k.load(f32, row, at * 4), at.trunc(i32), values, ids, f.k)
            with k.range(whole, f.vocab) as at:
                _insert(k, k.load(f32, row, at * 4), at.trunc(i32), values, ids, f.k)

    return Kernel("top_k", parse_fields("x:p stride:i vocab:i k:i values:p values_stride:i ids:p ids_stride:i"), body)


def _insert(k: Builder, x: Val, token: Val, values: Val, ids: Val, count: Val) -> None:
    """Insert one logit into the descending list; equals stay before it, as their ids are lower."""
    place = k.var(count)

    def goes_before() -> Val:
        above = k.max(place.value - 1, 0)
        held, owner = k.load(f32, values, above * 4), k.load(i32, ids, above * 4)
        less = Val(k, k.ir.or_((x > held).raw, k.ir.and_(owner.equals(0x7FFFFFFF).raw, x.equals(held).raw)))
        return Val(k, k.ir.and_((place.value > 0).raw, less.raw))

    with k.loop_while(goes_before):
        above = place.value - 1
        with k.when(place.value < count):
            k.store(k.load(f32, values, above * 4), values, place.value * 4)
            k.store(k.load(i32, ids, above * 4), ids, place.value * 4)
        place.set(above)
    with k.when(place.value < count):
        k.store(x, values, place.value * 4)
        k.store(token, ids, place.value * 4)
