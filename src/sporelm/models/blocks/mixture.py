"""The mixture of experts: a router picks a few gated feed-forward blocks for each token (Shazeer et al. 2017)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Param


class Mixture:
    """The weighted sum of the experts that the router chose for a token, and of a block that every token goes through
    where there is one: all as the configuration's `Experts` say."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        self.experts = experts = config.experts
        count, width, ffn = experts.count, config.width, experts.ffn or config.ffn
        self.router = Linear(f"{name}.ffn_gate_inp", count, width, bias=experts.bias)
        self.choice = Param(f"{name}.ffn_choice.bias", (count,)) if experts.choice_bias else None
        self.gate = ExpertLinear(f"{name}.ffn_gate_exps", (count, ffn, width), bias=experts.bias)
        self.up = ExpertLinear(f"{name}.ffn_up_exps", (count, ffn, width), bias=experts.bias)
        self.down = ExpertLinear(f"{name}.ffn_down_exps", (count, width, ffn), bias=experts.bias)
        shared = experts.shared_width
        self.shared = GatedMLP(name, config, part="_shexp", ffn=shared) if shared else None
        gated = shared and experts.shared_gate
        self.shared_gate = Linear(f"{name}.ffn_gate_inp_shexp", 1, width) if gated else None

    def params(self) -> list[Param]:
        parts = (self.router, self.gate, self.up, self.down, self.shared_gate, self.shared)
        choice = [] if self.choice is None else [self.choice]
        return [*choice, *(param for part in parts if part is not None for param in part.params())]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        shares, ids = self._routed(x, weights)
        gate, up = self.gate(x, weights, ids), self.up(x, weights, ids)
        if self.experts.clamp is None:
            inner = ops.silu_mul(gate, up)
        else:
            alpha, limit = self.experts.clamp
            inner = ops.clamped_swiglu(gate, up, alpha=alpha, limit=limit)
        mixed = ops.combine_experts(self.down(inner, weights, ids), shares)
        if self.shared is None:
            return mixed
        shared = self.shared(x, weights)
        if self.shared_gate is not None:
            share, _ = ops.route(self.shared_gate(x, weights), k=1, scores="sigmoid")
            shared = ops.combine_experts(shared, share)
        both = ops.add(mixed, shared)
        return ops.scale(both, factor=0.5) if self.experts.averaged else both

    def _routed(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """Weights and ids of each token's experts."""
        experts, choice = self.experts, [] if self.choice is None else [weights[self.choice.name]]
        return ops.route(
            self.router(x, weights),
            *choice,
            k=experts.used,
            scores=experts.scores,
            renormalize=experts.renormalize,
            epsilon=experts.epsilon,
            scale=experts.scale or 1.0,
            groups=experts.groups or 1,
            top_groups=experts.top_groups or 1,
            group_score=experts.group_score,
        )


class ExpertLinear:
    """A row's products with the matrices of its experts, with or without a bias each."""

    def __init__(self, name: str, shape: tuple[int, int, int], *, bias: bool) -> None:  # shape [experts, out, in]
        self.name, self.shape, self.bias = name, shape, bias

    def params(self) -> list[Param]:
        weight = Param(f"{self.name}.weight", self.shape)
        return [weight, Param(f"{self.name}.bias", self.shape[:2], plain=True)] if self.bias else [weight]

    def __call__(self, x: Any, weights: Mapping[str, Any], ids: Any) -> Any:  # x [tokens, in] or [tokens, k, in]
        held = [weights[param.name] for param in self.params()]
        return ops.linear_experts(x, held[0], ids, *held[1:])


def feed_forward(name: str, config: ModelConfig, layer: int) -> GatedMLP | Mixture:
    """A layer's mixture where it has one, else the gated block."""
    return Mixture(name, config) if config.experts and config.experts.at(layer) else GatedMLP(name, config)
