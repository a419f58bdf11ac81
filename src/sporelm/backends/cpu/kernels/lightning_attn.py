"""Lightning attention: a state that decays, adds the outer product of key and value, and is read by the query."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import StateShape, broadcast, each_state_tile, zero_vectors
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS


def lightning_attention(target: Any, shape: StateShape) -> Kernel:
    """Apply the attention. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        dim = 4 * shape.columns
        with each_state_tile(k, f, shape, first, last, scratch) as item:
            decay = k.splat(k.load(f32, f.decay, item.head * 4))
            with k.range(item.start, item.stop) as token:
                query = k.at(f.x, token * f.x_stride + item.head * (3 * dim))
                key, value = k.at(query, dim), k.at(query, item.at + 2 * dim)
                values, sums = item.load(value), zero_vectors(k, item.count)

                def change(at: Val, state: list[Val]) -> list[Val]:
                    write, read = (broadcast(k, place, at) for place in (key, query))
                    found = [k.fma(s, decay, write * v) for s, v in zip(state, values, strict=True)]
                    for total, s in zip(sums, found, strict=True):
                        total.set(k.fma(read, s, total.value))
                    return found

                item.sweep(change)
                place = k.at(f.out, token * f.out_stride + item.head * dim + item.at)
                item.store([total.value for total in sums], place)

    text = "x:p x_stride:i decay:p shared:i heads:i out:p out_stride:i"
    return Kernel(
        f"lightning_{shape.name}", parse_fields(f"{text} {SEQUENCE_FIELDS}"), body, scratch=shape.scratch(target)
    )
