"""Gated delta nets whose queries, keys and values are made and convolved apart, as Kimi Linear has them (2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.delta_net import DeltaHeads
from sporelm.models.blocks.linear import Linear, products
from sporelm.models.blocks.memory import State
from sporelm.models.inputs import StepInputs
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Param


class SplitDeltaNet:
    """o(norm(delta(silu(conv(q(x))), silu(conv(k(x))), silu(conv(v(x))))) * open(z(x))), in the place of attention.

    narrow  the width between the two products that z is made by, and what decays: then each channel of the keys decays
            by itself, and a sigmoid opens the output; 0: one product each, a decay for each head, silu
    most    how much of the new value a row takes at most; above 1, it may turn what was there about
    eps     of the norm; None: the model's
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        numbers: DeltaHeads,
        *,
        narrow: int = 0,
        most: float = 1.0,
        eps: float | None = None,
    ) -> None:
        n, width = numbers, config.width
        keys, rows = n.key_heads * n.key_dim, n.heads * n.key_dim
        self.numbers, self.most, self.eps = n, most, config.eps if eps is None else eps
        self.activation = "sigmoid" if narrow else "silu"
        self.widths = {"q": keys, "k": keys, "v": n.inner}
        self.qkv = [Linear(f"{name}.delta_{part}", out, width) for part, out in self.widths.items()]
        self.taps = [
            Param(f"{name}.delta_{part}_conv.weight", (n.taps, out), plain=True) for part, out in self.widths.items()
        ]
        self.beta, decays = Linear(f"{name}.delta_beta", n.heads, width), rows if narrow else n.heads
        outs = {"alpha": decays, "z": n.inner}
        self.first = [Linear(f"{name}.delta_{part}_a", narrow, width) for part in outs if narrow]
        self.gates = [Linear(f"{name}.delta_{part}", out, narrow or width) for part, out in outs.items()]
        self.o = Linear(f"{name}.delta_o", width, n.inner)
        self.decay, self.bias = Param(f"{name}.delta.decay", (n.heads,)), Param(f"{name}.delta_dt.bias", (decays,))
        self.norm = Param(f"{name}.delta_norm.weight", (n.value_dim,))
        self.memory = State((*((n.taps - 1, out) for out in self.widths.values()), (rows, n.value_dim)))

    def params(self) -> list[Param]:
        linears = (*self.qkv, self.beta, *self.first, *self.gates, self.o)
        vectors = [*self.taps, self.decay, self.bias, self.norm]
        return [*(param for linear in linears for param in linear.params()), *vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        *parts, beta, alpha, z = products(x, weights, *self.qkv, self.beta, *(self.first or self.gates))
        if self.first:
            alpha, z = (gate(made, weights) for gate, made in zip(self.gates, (alpha, z), strict=True))
        whose, numbers = (step.starts, step.lengths, step.states), self.numbers
        q, k, v = (
            ops.causal_conv1d(part, weights[taps.name], None, held, *whose)
            for part, taps, held in zip(parts, self.taps, cache, strict=False)
        )
        vectors = [weights[param.name] for param in (self.decay, self.bias)]
        options: dict[str, Any] = {"key_heads": numbers.key_heads, "order": numbers.order, "most": self.most}
        made = ops.gated_delta_rule(q, alpha, beta, *vectors, cache[3], *whose, k, v, **options)
        how: dict[str, Any] = {"eps": self.eps, "group": numbers.value_dim, "activation": self.activation}
        return self.o(ops.gated_rms_norm(made, z, weights[self.norm.name], first="norm", **how), weights)
