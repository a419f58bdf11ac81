"""Means of runs of rows. An item is one run; rows are added in order."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields


def mean_rows(target: Any) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            begin, stop = (k.load(i32, place, item * 4).sext(i64) for place in (f.firsts, f.stops))
            count = k.splat(k.const(f32, 1.0) * (stop - begin).trunc(i32).to_float())
            with k.range(f.vectors) as vector:
                total = k.zero(k.vf)
                with k.range(begin, stop) as row:
                    total.set(total.value + k.load(k.vf, f.x, row * f.stride + vector * (4 * k.lanes)))
                k.store(total.value / count, f.out, item * f.stride + vector * (4 * k.lanes))

    return Kernel("mean_rows", parse_fields("x:p stride:i vectors:i firsts:p stops:p out:p"), body)
