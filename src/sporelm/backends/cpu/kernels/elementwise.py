"""Element by element. An item is one token."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.products import silu_mul as gated


def _binary(name: str, combine: Callable[[Builder, Val, Val], Val]) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            left, right, out = (k.at(p, token * f.stride) for p in (f.x, f.y, f.out))
            with k.range(f.vectors) as v:
                at = v * (4 * k.lanes)
                k.store(combine(k, k.load(k.vf, left, at), k.load(k.vf, right, at)), out, at)

    return Kernel(name, fields("x:p y:p out:p stride:i vectors:i"), body)


def add(target: Any) -> Kernel:
    return _binary("add", lambda k, x, y: x + y)


def silu_mul(target: Any) -> Kernel:
    return _binary("silu_mul", gated)
