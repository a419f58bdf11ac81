"""RWKV's token shift. An item is one row."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields


def mix_rows(target: Any, mixes: int, more: bool) -> Kernel:
    """Mix each row with its predecessor. An item is a row; `mixes` results."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row, k.range(f.vectors) as v:
            at = v * (4 * k.lanes)
            x, delta = (k.load(k.vf, k.at(p, row * f.stride), at) for p in (f.x, f.delta))
            for number in range(mixes):
                mix = k.load(k.vf, getattr(f, f"mix{number}"), at)
                if more:
                    mix = mix + k.load(k.vf, k.at(getattr(f, f"more{number}"), row * f.stride), at)
                k.store(k.fma(mix, delta, x), k.at(getattr(f, f"out{number}"), row * f.stride), at)

    names = ("mix", "more", "out") if more else ("mix", "out")
    text = " ".join(f"{name}{number}:p" for name in names for number in range(mixes))
    return Kernel(f"mix_rows_{mixes}{'_more' * more}", parse_fields(f"x:p delta:p stride:i vectors:i {text}"), body)


def blend(target: Any) -> Kernel:
    """Blend rows. An item is a row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row, k.range(f.vectors) as v:
            at = v * (4 * k.lanes)
            x, y, gate = (k.load(k.vf, k.at(p, row * f.stride), at) for p in (f.x, f.y, f.gate))
            k.store(k.fma(y - x, sigmoid(k, gate), x), k.at(f.out, row * f.stride), at)

    return Kernel("blend", parse_fields("x:p y:p gate:p out:p stride:i vectors:i"), body)


def sigmoid(k: Builder, x: Val) -> Val:
    return k.const(x.type, 1.0) / (k.exp(-x) + 1.0)
