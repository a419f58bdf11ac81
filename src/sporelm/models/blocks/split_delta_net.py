"""Gated delta nets with separate projections and convolutions of queries, keys and values, as in Kimi Linear (2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.delta_net import DeltaNetShape
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

NO_RANKS: Mapping[str, int] = {}


class SplitDeltaNet:
    """o(norm(delta(silu(conv(q(x))), silu(conv(k(x))), silu(conv(v(x))))) * gate(z(x))), in place of attention.

    decays_channels   each channel of the keys has its own decay, and the gate is a sigmoid; otherwise each head has
                      one, and the gate is SiLU
    ranks             of the low-rank projections "alpha", for decays, and "z"; a missing one is a single matrix
    max_beta          the largest share of the new value that a row takes; above 1, it may reverse what was stored
    min_log_decay     logarithm of the smallest factor by which a row multiplies a state; 0: there is no bound
    eps               of the norm; None: the model's
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        shape: DeltaNetShape,
        *,
        decays_channels: bool = False,
        ranks: Mapping[str, int] = NO_RANKS,
        max_beta: float = 1.0,
        min_log_decay: float = 0.0,
        eps: float | None = None,
    ) -> None:
        width, inner = config.width, shape.inner_size
        keys, state_rows = shape.num_key_heads * shape.key_head_dim, shape.num_value_heads * shape.key_head_dim
        decays = state_rows if decays_channels else shape.num_value_heads
        self.shape, self.eps = shape, config.eps if eps is None else eps
        self.bounds = {"max_beta": max_beta, "min_log_decay": min_log_decay}
        self.activation = "sigmoid" if decays_channels else "silu"
        widths = {"q": keys, "k": keys, "v": inner}
        self.qkv = [Linear(f"{name}.delta_{part}", out, width) for part, out in widths.items()]
        self.convs = [
            Param(f"{name}.delta_{part}_conv.weight", (shape.conv_kernel, out), plain=True)
            for part, out in widths.items()
        ]
        self.beta = Linear(f"{name}.delta_beta", shape.num_value_heads, width)
        outs = {"alpha": decays, "z": inner}
        self.down = {part: Linear(f"{name}.delta_{part}_a", rank, width) for part, rank in ranks.items()}
        self.gates = {part: Linear(f"{name}.delta_{part}", out, ranks.get(part, width)) for part, out in outs.items()}
        self.o = Linear(f"{name}.delta_o", width, inner)
        self.decay = Param(f"{name}.delta.decay", (shape.num_value_heads,))
        self.bias = Param(f"{name}.delta_dt.bias", (decays,))
        self.norm = Param(f"{name}.delta_norm.weight", (shape.value_head_dim,))
        rows = shape.conv_kernel - 1
        self.memory = State((*((rows, out) for out in widths.values()), (state_rows, shape.value_head_dim)))

    def params(self) -> list[Param]:
        linears = (*self.qkv, self.beta, *self.down.values(), *self.gates.values(), self.o)
        vectors = [*self.convs, self.decay, self.bias, self.norm]
        return [*(param for linear in linears for param in linear.params()), *vectors]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        first = [self.down.get(part, gate) for part, gate in self.gates.items()]
        *parts, beta, alpha, z = apply_linears(x, weights, *self.qkv, self.beta, *first)
        alpha, z = (
            gate(rows, weights) if part in self.down else rows
            for (part, gate), rows in zip(self.gates.items(), (alpha, z), strict=True)
        )
        sequences, shape = (step.starts, step.lengths, step.states), self.shape
        q, k, v = (
            ops.causal_conv1d(part, weights[conv.name], None, state, *sequences)
            for part, conv, state in zip(parts, self.convs, cache, strict=False)
        )
        vectors = [weights[param.name] for param in (self.decay, self.bias)]
        options: dict[str, Any] = {"key_heads": shape.num_key_heads, "order": shape.head_order} | self.bounds
        mixed = ops.gated_delta_rule(q, alpha, beta, *vectors, cache[3], *sequences, k, v, **options)
        norm: dict[str, Any] = {"eps": self.eps, "group": shape.value_head_dim, "activation": self.activation}
        return self.o(ops.gated_rms_norm(mixed, z, weights[self.norm.name], first="norm", **norm), weights)
