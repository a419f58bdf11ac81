"""Elementwise ops. An item is one row."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.panel_products import silu_mul as gated


def _binary(name: str, combine: Callable[..., Val], *options: str) -> Kernel:
    """Apply `combine` to two values; `options` are f32 fields that it gets after them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row:
            left, right, out = (k.at(p, row * f.stride) for p in (f.x, f.y, f.out))
            numbers = [k.splat(getattr(f, option)) for option in options]
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(combine(k, k.load(k.vf, left, at), k.load(k.vf, right, at), *numbers), out, at)

    text = " ".join(["x:p y:p out:p stride:i vectors:i", *(f"{option}:f" for option in options)])
    return Kernel(name, parse_fields(text), body)


def add(target: Any) -> Kernel:
    return _binary("add", lambda k, x, y: x + y)


def silu_mul(target: Any) -> Kernel:
    return _binary("silu_mul", gated)


def clamped_swiglu(target: Any) -> Kernel:
    def combine(k: Builder, gate: Val, up: Val, alpha: Val, limit: Val) -> Val:
        gate, up = k.select(gate > limit, limit, gate), k.select(up > limit, limit, up)
        up = k.select(up < -limit, -limit, up)
        return (up + 1.0) * (gate / (k.exp(-(alpha * gate)) + 1.0))

    return _binary("clamped_swiglu", combine, "alpha", "limit")
