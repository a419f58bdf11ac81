"""Rows of pictures that take the place of rows, or are added to them. An item is one row."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields


def image_rows(target: Any, *, adds: bool) -> Kernel:
    """Replace or add rows. The last values of a row are read one by one, because others, or none, follow them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            row, out = k.at(f.x, item * f.stride), k.at(f.out, item * f.stride)
            number = k.load(i32, f.rows, item * 4).sext(i64)
            source = k.at(f.values, number * f.values_stride + f.first * 4)

            def combine(kind: Any, at: Val) -> None:
                value = k.load(kind, source, at)
                k.store(k.load(kind, row, at) + value if adds else value, out, at)

            with k.ir.if_else((number < 0).raw) as (none, one):
                with none, k.range(f.vectors) as vector:
                    k.store(k.load(k.vf, row, vector * (4 * k.lanes)), out, vector * (4 * k.lanes))
                with one:
                    whole = f.width // k.lanes * k.lanes
                    with k.range(0, whole, k.lanes) as column:
                        combine(k.vf, column * 4)
                    with k.range(whole, f.width) as column:
                        combine(f32, column * 4)

    text = "x:p values:p values_stride:i rows:p out:p stride:i width:i vectors:i first:i"
    return Kernel("add_rows" if adds else "replace_rows", parse_fields(text), body)
