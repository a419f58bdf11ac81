"""Gated linear attention over a recurrent state."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.norm import each_column
from sporelm.backends.cpu.kernels.recurrent_state import StateShape, broadcast, each_state_tile, zero_vectors
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS


def gated_linear_inputs(target: Any, dim: int) -> Kernel:
    """Compute the decay of each row of the heads' states at each token, and the addition. An item is a token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.heads) as head:
            at, out = head * (4 * dim), k.at(f.prepared, token * f.prepared_stride)
            own = head // (f.heads // f.shared) * (4 * dim)
            w, key = k.at(f.w, token * f.stride + at), k.at(f.k, token * f.k_stride + own)
            for kind, place in each_column(k, dim):
                decay = k.exp(-k.exp(k.load(kind, w, place)))
                k.store(decay, k.at(out, at), place)
                added = k.load(kind, key, place) * (k.const(kind, 1.0) - decay)
                k.store(added, k.at(out, at + f.second), place)

    text = "w:p stride:i k:p k_stride:i heads:i shared:i prepared:p prepared_stride:i second:i"
    return Kernel(f"grouped_prepared_{dim}", parse_fields(text), body)


def gated_linear_attention(target: Any, shape: StateShape) -> Kernel:
    """Update the states with the output of the previous kernel. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        columns = 4 * shape.columns
        with each_state_tile(k, f, shape, first, last, scratch) as item:
            own, group = item.head * (4 * shape.rows), item.shared * columns + item.at
            with k.range(item.start, item.stop) as token:
                read, decays = k.at(f.r, token * f.stride + own), k.at(f.prepared, token * f.prepared_stride + own)
                values, sums = item.load(k.at(f.v, token * f.v_stride + group)), zero_vectors(k, item.count)

                def change(at: Val, state: list[Val]) -> list[Val]:
                    r, decay, key = (broadcast(k, p, at) for p in (read, decays, k.at(decays, f.second)))
                    found = [k.fma(s, decay, key * v) for s, v in zip(state, values, strict=True)]
                    for total, s in zip(sums, found, strict=True):
                        total.set(k.fma(r, s, total.value))
                    return found

                item.sweep(change)
                place = k.at(f.out, token * f.out_stride + item.head * columns + item.at)
                item.store([total.value * k.splat(f.scale) for total in sums], place)

    text = (
        "r:p stride:i v:p v_stride:i out:p out_stride:i scale:f shared:i heads:i prepared:p prepared_stride:i second:i"
    )
    name = f"gated_linear_attention_{shape.name}"
    return Kernel(name, parse_fields(f"{text} {SEQUENCE_FIELDS}"), body, scratch=shape.scratch(target))
