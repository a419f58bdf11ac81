"""The split of a token's experts into computing experts and zero-computation experts."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import parse_fields


def split_zero_experts(target: Any) -> Kernel:
    """Split each token's experts. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        experts, nothing = f.experts.trunc(i32), k.const(f32, 0.0)
        with k.range(first, last) as token:
            weights, ids = k.at(f.weights, token * f.weights_stride), k.at(f.ids, token * f.k * 4)
            out, kept = k.at(f.out, token * f.out_stride), k.at(f.kept, token * f.k * 4)
            found, total = k.var(k.const(i32, -1)), k.zero(f32)
            with k.range(f.k) as slot:
                expert = k.load(i32, ids, slot * 4)
                works = k.select(expert < experts, expert, k.const(i32, -1))
                found.set(k.select(found.value < 0, works, found.value))
            spare = k.select(found.value < 0, k.const(i32, 0), found.value)
            with k.range(f.k) as slot:
                expert, weight = k.load(i32, ids, slot * 4), k.load(f32, weights, slot * 4)
                works = expert < experts
                k.store(k.select(works, weight, nothing), out, slot * 4)
                k.store(k.select(works, expert, spare), kept, slot * 4)
                total.set(total.value + k.select(works, nothing, weight))
            k.store(total.value, k.at(f.rest, token * f.rest_stride))

    text = "weights:p weights_stride:i ids:p experts:i k:i out:p out_stride:i kept:p rest:p rest_stride:i"
    return Kernel("split_zero_experts", parse_fields(text), body)
