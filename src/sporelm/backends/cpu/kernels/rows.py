"""Picking rows and columns, and picking tokens from rows of logits."""

from typing import Any

from llvmlite.ir import IntType

from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import fields


def select_rows(target: Any) -> Kernel:
    """An item is one wanted row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            source = k.at(f.x, k.load(i32, f.rows, item * 4).sext(i64) * f.stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(k.load(k.vf, source, at), f.out, item * f.stride + at)

    return Kernel("select_rows", fields("x:p rows:p out:p stride:i vectors:i"), body)


def select_columns(target: Any) -> Kernel:
    """An item is one row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            source, out = k.at(f.x, item * f.x_stride), k.at(f.out, item * f.out_stride)
            with k.range(f.width) as column:
                chosen = k.load(i32, f.columns, column * 4).sext(i64)
                k.store(k.load(f32, source, chosen * 4), out, column * 4)
            _pad(k, out, f.width, f.padded)

    return Kernel("select_columns", fields("x:p x_stride:i columns:p out:p out_stride:i width:i padded:i"), body)


def join_columns(target: Any, parts: int) -> Kernel:
    """An item is one row. A part's last values go one by one, for the next part follows them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            out, at = k.at(f.out, item * f.out_stride), k.index(0)
            for number in range(parts):
                source, width = (
                    k.at(getattr(f, f"x{number}"), item * getattr(f, f"stride{number}")),
                    getattr(f, f"width{number}"),
                )
                whole = width // k.lanes * k.lanes
                with k.range(0, whole, k.lanes) as column:
                    k.store(k.load(k.vf, source, column * 4), out, (at + column) * 4)
                with k.range(whole, width) as column:
                    k.store(k.load(f32, source, column * 4), out, (at + column) * 4)
                at = at + width
            _pad(k, out, at, f.padded)

    each = " ".join(f"x{number}:p stride{number}:i width{number}:i" for number in range(parts))
    return Kernel(f"join_columns_{parts}", fields(f"{each} out:p out_stride:i padded:i"), body)


def embedding(target: Any, kind: Panels, fills: bool = False) -> Kernel:
    """An item is one token; its row is read out of the panels. An id past the table gives NaN, or the first row if that
    `fills`, never foreign memory."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            given = k.load(i32, f.ids, token * 4).sext(i64)
            inside = k.select(given >= 0, k.const(i64, 1), k.const(i64, 0)) & k.select(
                given < f.vocab, k.const(i64, 1), k.const(i64, 0)
            )
            row, out = given * inside, k.at(f.out, token * f.out_stride)
            panel, lane = k.at(f.table, row // k.lanes * f.panel_bytes), row % k.lanes
            with k.range(f.groups) as group:
                at = group * (4 * kind.k_step)
                for number, value in enumerate(kind.row_values(k, panel, lane, group)):
                    k.store(value, out, at + 4 * k.lanes * number)
            _pad(k, out, f.width, f.padded)
            if not fills:
                with k.when(inside.equals(0)), k.range(f.width) as column:
                    k.store(k.const(f32, float("nan")), out, column * 4)

    name = f"embedding_{kind.name.lower()}{'_fills' * fills}"
    return Kernel(
        name, fields("ids:p table:p panel_bytes:i out:p out_stride:i groups:i width:i padded:i vocab:i"), body
    )


def _pad(k: Builder, row: Val, width: Val, padded: Val) -> None:
    """Zero the columns between a row's width and its padded width."""
    with k.range(width, padded) as column:
        k.store(k.const(f32, 0.0), row, column * 4)


def argmax(target: Any) -> Kernel:
    """An item is one row of logits: the lowest id of the greatest, -1 where there is NaN.

    Two passes, each with several vectors in flight: the greatest, then the first place that equals it.
    """

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            row = k.at(f.x, item * f.stride)
            peak, broken = _greatest(k, row, f.vocab)
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

    return Kernel("argmax", fields("x:p stride:i vocab:i out:p"), body)


def _greatest(k: Builder, row: Val, count: Val) -> tuple[Val, Val]:
    """The greatest of a row, and whether it holds NaN."""
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
    """An item is one row: its `k` greatest in falling order, lower ids first among equals, by insertion."""

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

    return Kernel("top_k", fields("x:p stride:i vocab:i k:i values:p values_stride:i ids:p ids_stride:i"), body)


def _insert(k: Builder, x: Val, token: Val, values: Val, ids: Val, count: Val) -> None:
    """Put one logit where it belongs in the falling list; equals stay before it, as their ids are lower."""
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
