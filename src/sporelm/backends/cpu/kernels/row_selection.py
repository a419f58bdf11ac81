"""Selection and concatenation of rows and columns."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields


def select_rows(target: Any) -> Kernel:
    """Select rows. An item is one selected row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            source = k.at(f.x, k.load(i32, f.rows, item * 4).sext(i64) * f.stride)
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(k.load(k.vf, source, at), f.out, item * f.stride + at)

    return Kernel("select_rows", parse_fields("x:p rows:p out:p stride:i vectors:i"), body)


def select_columns(target: Any) -> Kernel:
    """Select columns. An item is one row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            source, out = k.at(f.x, item * f.x_stride), k.at(f.out, item * f.out_stride)
            with k.range(f.width) as column:
                chosen = k.load(i32, f.columns, column * 4).sext(i64)
                k.store(k.load(f32, source, chosen * 4), out, column * 4)
            _pad(k, out, f.width, f.padded)

    return Kernel("select_columns", parse_fields("x:p x_stride:i columns:p out:p out_stride:i width:i padded:i"), body)


def join_columns(target: Any, parts: int) -> Kernel:
    """Join columns. An item is one row. The last values of a part are stored one by one, because the next part follows
    them."""

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
    return Kernel(f"join_columns_{parts}", parse_fields(f"{each} out:p out_stride:i padded:i"), body)


def _pad(k: Builder, row: Val, width: Val, padded: Val) -> None:
    """Zero the columns between a row's width and its padded width."""
    with k.range(width, padded) as column:
        k.store(k.const(f32, 0.0), row, column * 4)
