"""RMS norms of groups of a row, times silu or a sigmoid of a gate. An item is one token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.panel_products import silu_mul


def gated_rms_norm(target: Any, group: int, first: str, activation: str) -> Kernel:
    """Apply the norm to each group of `group` values, with the gate before or after it; a group's last values one
    by one."""
    opened = silu_mul if activation == "silu" else _sigmoid_mul

    def body(k: Builder, f: Any, first_item: Val, last: Val, scratch: Val) -> None:
        whole = group // k.lanes * k.lanes
        spans = [(k.vf, 0, whole, k.lanes), (f32, whole, group, 1)]
        with k.range(first_item, last) as token, k.range(f.groups) as number:
            at = token * f.stride + number * (4 * group)
            row, gate, out = (k.at(base, at) for base in (f.x, f.gate, f.out))
            weight, sums = k.at(f.weight, number * f.weight_stride), [k.zero(kind) for kind, *_ in spans]
            for (kind, start, stop, step), squares in zip(spans, sums, strict=True):
                with k.range(start, stop, step) as column:
                    x = k.load(kind, row, column * 4)
                    if first == "gate":
                        x = opened(k, k.load(kind, gate, column * 4), x)
                        k.store(x, out, column * 4)
                    squares.set(k.fma(x, x, squares.value))
            mean = (k.sum(sums[0].value) + sums[1].value) / float(group)
            scale = k.const(f32, 1.0) / k.sqrt(mean + f.eps)
            for kind, start, stop, step in spans:
                with k.range(start, stop, step) as column:
                    factor = scale if kind is f32 else k.splat(scale)
                    x = k.load(kind, out if first == "gate" else row, column * 4)
                    x = x * factor * k.load(kind, weight, column * 4)
                    k.store(x if first == "gate" else opened(k, k.load(kind, gate, column * 4), x), out, column * 4)

    text = "x:p gate:p stride:i weight:p weight_stride:i out:p groups:i eps:f"
    return Kernel(f"gated_rms_norm_{group}_{first}_{activation}", parse_fields(text), body)


def _sigmoid_mul(k: Builder, gate: Val, x: Val) -> Val:
    return x / (k.exp(-gate) + 1.0)
