"""Griffin's gated linear recurrent unit. An item is a tile of a head's channels of one sequence, as in
`recurrent_state`."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import StateShape, StateTile, each_state_tile, softplus
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS
from sporelm.ops.gated_lru import SHARPNESS


def gated_lru(target: Any, shape: StateShape) -> Kernel:
    """Apply the unit. The rates are recomputed from the weights for each row, which costs little beside the gates'
    exponentials."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_state_tile(k, f, shape, first, last, scratch) as item, k.range(item.start, item.stop) as token:
            _row(k, f, item, token)

    text = "x:p x_stride:i recurrence_gate:p input_gate:p gate_stride:i decay:p"
    text += " recurrence_bias:p input_bias:p bias_stride:i out:p"
    text = f"{text} out_stride:i heads:i shared:i {SEQUENCE_FIELDS}"
    return Kernel(f"gated_lru_{shape.name}", parse_fields(text), body, scratch=shape.scratch(target))


def _row(k: Builder, f: Any, item: StateTile, token: Val) -> None:
    at, own = item.head * (4 * item.shape.columns) + item.at, item.head * f.bias_stride + item.at
    one, nothing = k.const(f32, 1.0), k.const(f32, 0.0)
    begins = k.splat(k.select(item.begins, one, nothing) * k.select(token.equals(item.start), one, nothing))

    def sigmoid(gate: Val, bias: Val) -> list[Val]:
        given = item.load(k.at(gate, token * f.gate_stride + at))
        shifted = [g + b for g, b in zip(given, item.load(k.at(bias, own)), strict=True)]
        return [k.const(k.vf, 1.0) / (k.exp(-each) + 1.0) for each in shifted]

    kept, rates = sigmoid(f.recurrence_gate, f.recurrence_bias), item.load(k.at(f.decay, at))
    faded = [softplus(k, rate) * SHARPNESS * r for rate, r in zip(rates, kept, strict=True)]
    taken = sigmoid(f.input_gate, f.input_bias)
    x = item.load(k.at(f.x, token * f.x_stride + at))
    made = []
    for h, log, i, value in zip(item.first_row(), faded, taken, x, strict=True):
        gain = k.sqrt(k.const(k.vf, 1.0) - k.exp(log * 2.0))
        gain = gain + begins * (k.const(k.vf, 1.0) - gain)
        made.append(k.fma(h, k.exp(log), gain * (i * value)))
    item.keep(made)
    item.store(made, k.at(f.out, token * f.out_stride + at))
