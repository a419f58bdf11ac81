"""Which of a token's experts compute, and how much those count that do not."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import fields


def part_idle(target: Any) -> Kernel:
    """An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        experts, nothing = f.experts.trunc(i32), k.const(f32, 0.0)
        with k.range(first, last) as token:
            shares, ids = k.at(f.shares, token * f.shares_stride), k.at(f.ids, token * f.k * 4)
            out, kept = k.at(f.out, token * f.out_stride), k.at(f.kept, token * f.k * 4)
            found, total = k.var(k.const(i32, -1)), k.zero(f32)
            with k.range(f.k) as slot:
                expert = k.load(i32, ids, slot * 4)
                works = k.select(expert < experts, expert, k.const(i32, -1))
                found.set(k.select(found.value < 0, works, found.value))
            spare = k.select(found.value < 0, k.const(i32, 0), found.value)
            with k.range(f.k) as slot:
                expert, share = k.load(i32, ids, slot * 4), k.load(f32, shares, slot * 4)
                works = expert < experts
                k.store(k.select(works, share, nothing), out, slot * 4)
                k.store(k.select(works, expert, spare), kept, slot * 4)
                total.set(total.value + k.select(works, nothing, share))
            k.store(total.value, k.at(f.rest, token * f.rest_stride))

    text = "shares:p shares_stride:i ids:p experts:i k:i out:p out_stride:i kept:p rest:p rest_stride:i"
    return Kernel("part_idle", fields(text), body)
