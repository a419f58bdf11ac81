"""Norms of rows, by their root mean square or by mean and deviation. An item is one token."""

from collections.abc import Iterator
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import parse_fields


def rms_norm(target: Any) -> Kernel:
    """Apply an RMS norm. `vectors` counts the vectors of a row; values past the width in the last one are ignored."""
    return Kernel(
        "rms_norm", parse_fields("x:p x_stride:i weight:p out:p out_stride:i vectors:i width:f eps:f"), _body(False)
    )


def add_rms_norm(target: Any) -> Kernel:
    """Apply an RMS norm to x + residual; the sum is stored too."""
    text = "x:p x_stride:i residual:p weight:p out:p out_stride:i total:p vectors:i width:f eps:f"
    return Kernel("add_rms_norm", parse_fields(text), _body(True))


def valid_lanes(k: Builder, f: Any) -> Val:
    """Return which lanes of a row's last vector belong to the row."""
    return (k.iota(k.vi) + k.splat(((f.vectors - 1) * k.lanes).trunc(i32))).to_float() < k.splat(f.width)


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
            x = k.select(valid_lanes(k, f), column(end), k.const(k.vf, 0))
            squares.set(k.fma(x, x, squares.value))
            mean = k.sum(squares.value) / f.width
            scale = k.splat(k.const(f32, 1.0) / k.sqrt(mean + f.eps))
            source = total if adds else row
            with k.range(f.vectors) as v:
                k.store(k.load(k.vf, source, v * wide) * scale * k.load(k.vf, f.weight, v * wide), out, v * wide)

    return body


def rms_norm_of_heads(target: Any, head_dim: int) -> Kernel:
    """Normalize each head of a row; a head's last values one by one, as the next head follows. A weight stride of 0
    shares one weight."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at = head * (4 * head_dim)
            row, out = k.at(f.x, token * f.x_stride + at), k.at(f.out, token * f.out_stride + at)
            norm_head(k, row, out, k.at(f.weight, head * f.weight_stride), head_dim, f.eps)

    text = "x:p x_stride:i weight:p weight_stride:i out:p out_stride:i heads:i eps:f"
    return Kernel(f"rms_norm_of_heads_{head_dim}", parse_fields(text), body)


def norm_head(k: Builder, row: Val, out: Val, weight: Val, width: int, eps: Val) -> None:
    """Normalize one head by its root mean square; nothing is read or written past its width."""
    whole = width // k.lanes * k.lanes
    squares, rest = k.zero(k.vf), k.zero(f32)
    with k.range(0, whole, k.lanes) as column:
        x = k.load(k.vf, row, column * 4)
        squares.set(k.fma(x, x, squares.value))
    with k.range(whole, width) as column:
        x = k.load(f32, row, column * 4)
        rest.set(k.fma(x, x, rest.value))
    mean = (k.sum(squares.value) + rest.value) / float(width)
    scale = k.const(f32, 1.0) / k.sqrt(mean + eps)
    with k.range(0, whole, k.lanes) as column:
        found = k.load(k.vf, row, column * 4) * k.splat(scale) * k.load(k.vf, weight, column * 4)
        k.store(found, out, column * 4)
    with k.range(whole, width) as column:
        k.store(k.load(f32, row, column * 4) * scale * k.load(f32, weight, column * 4), out, column * 4)


def layer_norm_of_heads(target: Any, head_dim: int, *, bias: bool = False) -> Kernel:
    """Apply layer norm to each head of a row, with its own weight and optional bias."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at = head * (4 * head_dim)
            row, out = k.at(f.x, token * f.x_stride + at), k.at(f.out, token * f.out_stride + at)
            weight = k.at(f.weight, head * f.weight_stride)
            shift = k.at(f.bias, head * f.weight_stride) if bias else None
            sums = RowSum(k)
            for kind, place in each_column(k, head_dim):
                sums.add(kind, k.load(kind, row, place))
            mean = sums.total() / float(head_dim)
            squares, left = RowSum(k), RowSum(k)  # residual of the rounded mean, as below
            for kind, place in each_column(k, head_dim):
                x = k.load(kind, row, place) - (k.splat(mean) if kind is k.vf else mean)
                squares.add(kind, x * x)
                left.add(kind, x)
            rest = left.total() / float(head_dim)
            scale = k.const(f32, 1.0) / k.sqrt(squares.total() / float(head_dim) - rest * rest + f.eps)
            for kind, place in each_column(k, head_dim):
                less, by = (k.splat(each) if kind is k.vf else each for each in (mean + rest, scale))
                made = (k.load(kind, row, place) - less) * by * k.load(kind, weight, place)
                k.store(made if shift is None else made + k.load(kind, shift, place), out, place)

    text = f"x:p x_stride:i weight:p weight_stride:i out:p out_stride:i heads:i eps:f{' bias:p' * bias}"
    return Kernel(f"layer_norm_of_heads_{head_dim}{'_bias' * bias}", parse_fields(text), body)


def each_column(k: Builder, width: int) -> Iterator[tuple[Any, Val]]:
    """Yield type and offset of each whole vector of a head, then of its last values one by one, as the next head
    follows."""
    whole = width // k.lanes * k.lanes
    with k.range(0, whole, k.lanes) as column:
        yield k.vf, column * 4
    with k.range(whole, width) as column:
        yield f32, column * 4


class RowSum:
    """A sum of vectors and of single values."""

    def __init__(self, k: Builder) -> None:
        self.k, self.vectors, self.rest = k, k.zero(k.vf), k.zero(f32)

    def add(self, kind: Any, x: Val) -> None:
        held = self.vectors if kind is self.k.vf else self.rest
        held.set(held.value + x)

    def total(self) -> Val:
        return self.k.sum(self.vectors.value) + self.rest.value


def layer_norm(target: Any, *, adds: bool, weight: bool, bias: bool) -> Kernel:
    """Apply layer norm; with `adds` to x + residual, whose sum is stored."""
    text = "x:p x_stride:i out:p out_stride:i vectors:i width:f eps:f"
    text += " residual:p total:p" * adds + " weight:p" * weight + " bias:p" * bias
    name = f"{'add_' * adds}layer_norm{'' if weight else '_bare'}{'_bias' * bias}"
    return Kernel(name, parse_fields(text), _layer_norm_body(adds, weight, bias))


def _layer_norm_body(adds: bool, weight: bool, bias: bool) -> Any:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide, end = 4 * k.lanes, f.vectors - 1
        own, nothing = valid_lanes(k, f), k.const(k.vf, 0)
        with k.range(first, last) as token:
            row, out = k.at(f.x, token * f.x_stride), k.at(f.out, token * f.out_stride)
            source = k.at(f.total, token * f.x_stride) if adds else row
            sums, squares = k.zero(k.vf), k.zero(k.vf)

            def column(v: Val) -> Val:
                x = k.load(k.vf, row, v * wide)
                if adds:
                    x = x + k.load(k.vf, k.at(f.residual, token * f.x_stride), v * wide)
                    k.store(x, source, v * wide)
                return x

            with k.range(end) as v:
                sums.set(sums.value + column(v))
            sums.set(sums.value + k.select(own, column(end), nothing))
            mean = k.splat(k.sum(sums.value) / f.width)
            left = k.zero(k.vf)  # residual of the rounded mean: it matters if values are far from zero
            with k.range(end) as v:
                x = k.load(k.vf, source, v * wide) - mean
                squares.set(k.fma(x, x, squares.value))
                left.set(left.value + x)
            x = k.select(own, k.load(k.vf, source, end * wide) - mean, nothing)
            squares.set(k.fma(x, x, squares.value))
            rest = k.sum(left.value + x) / f.width
            variance = k.sum(squares.value) / f.width - rest * rest
            scale, shift = k.splat(k.const(f32, 1.0) / k.sqrt(variance + f.eps)), k.splat(rest)
            with k.range(f.vectors) as v:
                x = (k.load(k.vf, source, v * wide) - mean - shift) * scale
                x = x * k.load(k.vf, f.weight, v * wide) if weight else x
                k.store(x + k.load(k.vf, f.bias, v * wide) if bias else x, out, v * wide)

    return body
