"""Root-mean-square norms of rows. An item is one token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import fields


def rms_norm(target: Any) -> Kernel:
    """`vectors` counts the vectors of a row; what lies past the width in the last one does not matter."""
    return Kernel(
        "rms_norm", fields("x:p x_stride:i weight:p out:p out_stride:i vectors:i width:f eps:f"), _body(False)
    )


def add_rms_norm(target: Any) -> Kernel:
    """The same of x + residual; the sum is kept too."""
    text = "x:p x_stride:i residual:p weight:p out:p out_stride:i total:p vectors:i width:f eps:f"
    return Kernel("add_rms_norm", fields(text), _body(True))


def _body(adds: bool) -> Any:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        with k.range(first, last) as token:
            row, out = k.at(f.x, token * f.x_stride), k.at(f.out, token * f.out_stride)
            squares = k.zero(k.vf)
            if adds:
                other, total = k.at(f.residual, token * f.x_stride), k.at(f.total, token * f.x_stride)

            def column(v: Val) -> Val:
                x = k.load(k.vf, row, v * wide)
                if adds:
                    x = x + k.load(k.vf, other, v * wide)
                    k.store(x, total, v * wide)
                return x

            end = f.vectors - 1
            with k.range(end) as v:
                x = column(v)
                squares.set(k.fma(x, x, squares.value))
            inside = (k.iota(k.vi) + k.splat((end * k.lanes).trunc(i32))).to_float() < k.splat(f.width)
            x = k.select(inside, column(end), k.const(k.vf, 0))
            squares.set(k.fma(x, x, squares.value))
            mean = k.sum(squares.value) / f.width
            scale = k.splat(k.const(f32, 1.0) / k.sqrt(mean + f.eps))
            source = total if adds else row
            with k.range(f.vectors) as v:
                k.store(k.load(k.vf, source, v * wide) * scale * k.load(k.vf, f.weight, v * wide), out, v * wide)

    return body
