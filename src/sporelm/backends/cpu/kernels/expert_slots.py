"""Joining the outputs of a token's experts to one row, and cutting rows for experts. An item is a token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields


def join_slots(target: Any) -> Kernel:
    """Join rows: column c of the result is column c % width of the row of expert c // width."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            source, out = k.at(f.x, token * f.token_bytes), k.at(f.out, token * f.out_stride)
            with k.range(f.wanted) as column:
                chosen = k.load(i32, f.columns, column * 4).sext(i64)
                slot = chosen // f.width
                k.store(k.load(f32, source, slot * f.x_stride + (chosen - slot * f.width) * 4), out, column * 4)
            with k.range(f.wanted, f.padded) as column:
                k.store(k.const(f32, 0.0), out, column * 4)

    text = "x:p token_bytes:i x_stride:i width:i columns:p out:p out_stride:i wanted:i padded:i"
    return Kernel("join_slots", parse_fields(text), body)


def cut_slots(target: Any) -> Kernel:
    """Cut each row to `slots` rows of `width` columns."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.slots) as slot:
            source = k.at(f.x, token * f.x_stride)
            out = k.at(f.out, token * f.token_bytes + slot * f.out_stride)
            with k.range(f.width) as column:
                chosen = k.load(i32, f.columns, (slot * f.width + column) * 4).sext(i64)
                k.store(k.load(f32, source, chosen * 4), out, column * 4)
            with k.range(f.width, f.padded) as column:
                k.store(k.const(f32, 0.0), out, column * 4)

    text = "x:p x_stride:i columns:p out:p token_bytes:i out_stride:i slots:i width:i padded:i"
    return Kernel("cut_slots", parse_fields(text), body)
