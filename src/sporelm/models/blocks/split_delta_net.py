"""Gated delta nets whose queries, keys and values are made and convolved apart, as Kimi Linear has them (2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.delta_net import DeltaHeads
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

NONE: Mapping[str, int] = {}


class SplitDeltaNet:
    """o(norm(delta(silu(conv(q(x))), silu(conv(k(x))), silu(conv(v(x))))) * open(z(x))), in the place of attention.

    channels  each channel of the keys decays by itself, and a sigmoid opens the output; else each head, and silu
    narrow    of "alpha", by which states decay, and of "z": the width between the two products that make it; one makes
              those that are not in it
    most      how much of the new value a row takes at most; above 1, it may turn what was there about
    least     e to the power of it is what a row leaves of a state at least; 0: there is no bound
    eps       of the norm; None: the model's
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        numbers: DeltaHeads,
        *,
        channels: bool = False,
        narrow: Mapping[str, int] = NONE,
        most: float = 1.0,
        least: float = 0.0,
        eps: float | None = None,
    ) -> None:
        n, width = numbers, config.width
        keys, rows = n.key_heads * n.key_dim, n.heads * n.key_dim
        self.numbers, self.eps = n, config.eps if eps is None else eps
        self.bounds, self.activation = {"max_beta": most, "min_log_decay": least}, "sigmoid" if channels else "silu"
        self.widths = {"q": keys, "k": keys, "v": n.inner}
        self.qkv = [Linear(f"{name}.delta_{part}", out, width) for part, out in self.widths.items()]
        self.taps = [
            Param(f"{name}.delta_{part}_conv.weight", (n.taps, out), plain=True) for part, out in self.widths.items()
        ]
        self.beta, decays = Linear(f"{name}.delta_beta", n.heads, width), rows if channels else n.heads
        outs = {"alpha": decays, "z": n.inner}
        self.first = {part: Linear(f"{name}.delta_{part}_a", inner, width) for part, inner in narrow.items()}
        self.gates = {part: Linear(f"{name}.delta_{part}", out, narrow.get(part, width)) for part, out in outs.items()}
        self.o = Linear(f"{name}.delta_o", width, n.inner)
        self.decay, self.bias = Param(f"{name}.delta.decay", (n.heads,)), Param(f"{name}.delta_dt.bias", (decays,))
        self.norm = Param(f"{name}.delta_norm.weight", (n.value_dim,))
        self.memory = State((*((n.taps - 1, out) for out in self.widths.values()), (rows, n.value_dim)))

    def params(self) -> list[Param]:
        linears = (*self.qkv, self.beta, *self.first.values(), *self.gates.values(), self.o)
        vectors = [*self.taps, self.decay, self.bias, self.norm]
        return [*(param for linear in linears for param in linear.params()), *vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        made = [self.first.get(part, gate) for part, gate in self.gates.items()]
        *parts, beta, alpha, z = apply_linears(x, weights, *self.qkv, self.beta, *made)
        alpha, z = (
            gate(one, weights) if part in self.first else one
            for (part, gate), one in zip(self.gates.items(), (alpha, z), strict=True)
        )
        whose, numbers = (step.starts, step.lengths, step.states), self.numbers
        q, k, v = (
            ops.causal_conv1d(part, weights[taps.name], None, held, *whose)
            for part, taps, held in zip(parts, self.taps, cache, strict=False)
        )
        vectors = [weights[param.name] for param in (self.decay, self.bias)]
        options: dict[str, Any] = {"key_heads": numbers.key_heads, "order": numbers.order} | self.bounds
        mixed = ops.gated_delta_rule(q, alpha, beta, *vectors, cache[3], *whose, k, v, **options)
        how: dict[str, Any] = {"eps": self.eps, "group": numbers.value_dim, "activation": self.activation}
        return self.o(ops.gated_rms_norm(mixed, z, weights[self.norm.name], first="norm", **how), weights)
