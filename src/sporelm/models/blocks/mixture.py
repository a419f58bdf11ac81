"""The mixture of experts: a router picks a few feed-forward blocks for each token (Shazeer et al. 2017)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mlp import MLP
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param


class Mixture:
    """The weighted sum of the experts that the router chose for a token, and of a block that every token goes through
    where there is one: all as the configuration's `Experts` say."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        self.experts = experts = config.experts
        count, width, ffn = experts.count, config.width, experts.ffn or config.ffn
        self.router = Linear(f"{name}.ffn_gate_inp", count, width, bias=experts.bias)
        self.choice = Param(f"{name}.ffn_choice.bias", (count,)) if experts.choice_bias else None
        inside, bias = experts.latent or width, config.mlp_bias
        self.narrow = Linear(f"{name}.ffn_latent_down", inside, width, bias=bias) if experts.latent else None
        self.widen = Linear(f"{name}.ffn_latent_up", width, inside, bias=bias) if experts.latent else None
        gate = ExpertLinear(f"{name}.ffn_gate_exps", (count, ffn, inside), bias=experts.bias)
        self.gates = [] if experts.plain else [gate]
        self.up = ExpertLinear(f"{name}.ffn_up_exps", (count, ffn, inside), bias=experts.bias)
        self.down = ExpertLinear(f"{name}.ffn_down_exps", (count, inside, ffn), bias=experts.bias)
        self.added = Param(f"{name}.ffn_mixture.bias", (inside,)) if experts.added else None
        shared = experts.shared_width
        self.shared = _shared(name, config, shared) if shared else None
        gated = shared and experts.shared_gate
        self.shared_gate = Linear(f"{name}.ffn_gate_inp_shexp", 1, width) if gated else None

    def params(self) -> list[Param]:
        experts = (*self.gates, self.up, self.down)
        parts = (self.router, self.narrow, *experts, self.widen, self.shared_gate, self.shared)
        own = [param for param in (self.choice, self.added) if param is not None]
        return [*own, *(param for part in parts if part is not None for param in part.params())]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        shares, ids = self._routed(x, weights)
        inner = self._inner(x if self.narrow is None else self.narrow(x, weights), weights, ids)
        added = [] if self.added is None else [weights[self.added.name]]
        mixed = ops.combine_experts(self.down(inner, weights, ids), shares, *added)
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
        """What each expert's last matrix reads: [tokens, k, ffn]."""
        gates, up = [gate(x, weights, ids) for gate in self.gates], self.up(x, weights, ids)
        if not gates:
            return ops.activate(up, kind=self.experts.plain)
        if self.experts.clamp is None:
            return ops.silu_mul(gates[0], up)
        alpha, limit = self.experts.clamp
        return ops.clamped_swiglu(gates[0], up, alpha=alpha, limit=limit)

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
            scale=experts.scale,
            groups=experts.groups or 1,
            top_groups=experts.top_groups or 1,
            group_score=experts.group_score,
            near=experts.near,
        )


def _shared(name: str, config: ModelConfig, ffn: int) -> GatedMLP | MLP:
    """The block that every token goes through, of the experts' kind."""
    assert config.experts is not None
    if config.experts.plain:
        return MLP(name, config, config.experts.plain, part="_shexp", ffn=ffn)
    return GatedMLP(name, config, part="_shexp", ffn=ffn)


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
