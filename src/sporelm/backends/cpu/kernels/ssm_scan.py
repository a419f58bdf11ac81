"""Mamba 2's scan, row by row."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import (
    StateShape,
    broadcast,
    each_state_tile,
    gate_kernel,
    softplus,
    zero_vectors,
)
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS


def scan_gates(target: Any) -> Kernel:
    """Compute each head's decay at each token, and the length of the time step."""

    def pair(k: Builder, f: Any, token: Val, at: Val, decay: Val) -> tuple[Val, Val]:
        step = softplus(k, k.load(k.vf, k.at(f.dt, token * f.stride), at) + k.load(k.vf, f.bias, at))
        low, high = k.splat(f.low), k.splat(f.high)
        step = k.select(step < low, low, step)
        step = k.select(step > high, high, step)
        return k.exp(step * decay), step

    return gate_kernel("scan_gates", "dt:p low:f high:f", pair)


def ssm_scan(target: Any, shape: StateShape) -> Kernel:
    """Run Mamba 2's scan with time steps and decays by `scan_gates`. An item is a tile of a head's state of a
    sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_state_tile(k, f, shape, first, last, scratch) as item:
            skip = k.splat(k.load(f32, f.skip, item.head * 4))
            head = item.head * (4 * shape.columns) + item.at
            with k.range(item.start, item.stop) as token:
                row, gates = k.at(f.x, token * f.x_stride), k.at(f.gates, token * f.gates_stride)
                kept, step = (k.splat(k.load(f32, gates, item.head * 4 + f.second * n)) for n in (0, 1))
                write = k.at(row, f.inner + item.shared * (4 * shape.rows))
                read = k.at(write, f.shared * (4 * shape.rows))
                x = item.load(k.at(row, head))
                scaled, sums = [each * step for each in x], zero_vectors(k, item.count)

                def change(at: Val, state: list[Val]) -> list[Val]:
                    b, c = (broadcast(k, place, at) for place in (write, read))
                    found = [k.fma(s, kept, b * u) for s, u in zip(state, scaled, strict=True)]
                    for total, s in zip(sums, found, strict=True):
                        total.set(k.fma(c, s, total.value))
                    return found

                item.sweep(change)
                result = [k.fma(skip, each, total.value) for each, total in zip(x, sums, strict=True)]
                item.store(result, k.at(f.out, token * f.out_stride + head))

    text = "x:p x_stride:i gates:p gates_stride:i second:i skip:p inner:i shared:i heads:i out:p out_stride:i"
    return Kernel(
        f"ssm_scan_{shape.name}", parse_fields(f"{text} {SEQUENCE_FIELDS}"), body, scratch=shape.scratch(target)
    )
