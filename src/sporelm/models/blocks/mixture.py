"""The mixture of experts: a router selects a few feed-forward blocks for each token (Shazeer et al. 2017)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mlp import MLP
from sporelm.models.config import ModelConfig
from sporelm.models.params import Columns, Param, Rows


class Mixture:
    """The weighted sum of the experts that the router selects for a token, plus the shared expert, if there is one. The
    configuration's `Experts` describe both."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        self.experts = experts = config.experts
        count, width, ffn = experts.count, config.width, experts.ffn or config.ffn
        self.router = Linear(f"{name}.ffn_gate_inp", count, width, bias=experts.bias)
        self.choice = Param(f"{name}.ffn_choice.bias", (count,)) if experts.choice_bias else None
        inner_width, bias = experts.latent or width, config.mlp_bias
        self.narrow = Linear(f"{name}.ffn_latent_down", inner_width, width, bias=bias) if experts.latent else None
        self.widen = Linear(f"{name}.ffn_latent_up", width, inner_width, bias=bias) if experts.latent else None
        shape, split = (count, ffn, inner_width), Rows()
        gate = ExpertLinear(f"{name}.ffn_gate_exps", shape, bias=experts.bias, split=split)
        self.gates = [] if experts.plain else [gate]
        self.up = ExpertLinear(f"{name}.ffn_up_exps", shape, bias=experts.bias, split=split)
        shape = (count, inner_width, ffn)
        self.down = ExpertLinear(f"{name}.ffn_down_exps", shape, bias=experts.bias, split=Columns())
        self.mixture_bias = Param(f"{name}.ffn_mixture.bias", (inner_width,)) if experts.added else None
        shared_width = experts.shared_width
        self.shared = shared_expert(name, config, shared_width) if shared_width else None
        has_gate = shared_width and experts.shared_gate
        self.shared_gate = Linear(f"{name}.ffn_gate_inp_shexp", 1, width) if has_gate else None

    def params(self) -> list[Param]:
        experts = (*self.gates, self.up, self.down)
        parts = (self.router, self.narrow, *experts, self.widen, self.shared_gate, self.shared)
        biases = [param for param in (self.choice, self.mixture_bias) if param is not None]
        return [*biases, *(param for part in parts if part is not None for param in part.params())]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        shares, ids = self.route(x, weights)
        inner = self._inner(x if self.narrow is None else self.narrow(x, weights), weights, ids)
        biases = [] if self.mixture_bias is None else [weights[self.mixture_bias.name]]
        mixed = ops.combine_experts(self.down(inner, weights, ids), shares, *biases)
        mixed = mixed if self.widen is None else self.widen(mixed, weights)
        if self.shared is None:
            return mixed
        shared = self.shared(x, weights)
        if self.shared_gate is not None:
            share, _ = ops.route(self.shared_gate(x, weights), k=1, scores="sigmoid")
            shared = ops.combine_experts(shared, share)
        both = ops.add(mixed, shared)
        return ops.scale(both, factor=0.5) if self.experts.averaged else both

    def _inner(self, x: Any, weights: Mapping[str, Any], ids: Any) -> Any:
        """Return the input of each expert's down projection: [tokens, k, ffn]."""
        gates, up = [gate(x, weights, ids) for gate in self.gates], self.up(x, weights, ids)
        if not gates:
            return ops.activate(up, kind=self.experts.plain)
        if self.experts.clamp is None:
            return ops.silu_mul(gates[0], up)
        alpha, limit = self.experts.clamp
        return ops.clamped_swiglu(gates[0], up, alpha=alpha, limit=limit)

    def route(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """Return the weights and the ids of each token's experts: [tokens, k] each."""
        experts = self.experts
        choice = [] if self.choice is None else [weights[self.choice.name]]
        return ops.route(
            self.router(x, weights),
            *choice,
            k=experts.used,
            scores=experts.scores,
            renormalize=experts.renormalize,
            epsilon=experts.epsilon,
            scale=experts.scale,
            groups=experts.groups or 1,
            top_groups=experts.top_groups or 1,
            group_score=experts.group_score,
            near=experts.near,
        )


def shared_expert(name: str, config: ModelConfig, ffn: int) -> GatedMLP | MLP:
    """Return the expert that all tokens pass, of the same kind as the others."""
    assert config.experts is not None
    if config.experts.plain:
        return MLP(name, config, config.experts.plain, part="_shexp", ffn=ffn)
    return GatedMLP(name, config, part="_shexp", ffn=ffn)


class ExpertLinear:
    """The products of a row with the matrices of its experts, with or without biases."""

    def __init__(
        self, name: str, shape: tuple[int, int, int], *, bias: bool, split: Rows | Columns | None = None
    ) -> None:  # shape [experts, out, in]
        self.name, self.shape, self.bias, self.split = name, shape, bias, split

    def params(self) -> list[Param]:
        weight = Param(f"{self.name}.weight", self.shape, self.split)
        return [weight, Param(f"{self.name}.bias", self.shape[:2], plain=True)] if self.bias else [weight]

    def __call__(self, x: Any, weights: Mapping[str, Any], ids: Any) -> Any:  # x [tokens, in] or [tokens, k, in]
        weight, *biases = (weights[param.name] for param in self.params())
        return ops.linear_experts(x, weight, ids, *biases)


def feed_forward(name: str, config: ModelConfig, layer: int) -> GatedMLP | Mixture:
    """Return the mixture of a layer that has experts, else its gated block."""
    return Mixture(name, config) if config.experts and config.experts.at(layer) else GatedMLP(name, config)
