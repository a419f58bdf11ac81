"""A gated block and a mixture of experts in parallel (Gemma 4)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param


class ParallelMixture(Mixture):
    """norm(mlp(norm(x))) + norm(experts(norm(x))); the router has a norm of its own."""

    def __init__(self, name: str, config: ModelConfig, mlp: GatedMLP) -> None:
        super().__init__(name, config)
        parts = ("ffn", "ffn_dense_post", "ffn_experts", "ffn_experts_post", "ffn_gate_inp")
        self.norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in parts]
        self.mlp, self.factors = mlp, Param(f"{name}.ffn_factors.weight", (self.experts.count,))

    def params(self) -> list[Param]:
        norms = [param for norm in self.norms for param in norm.params()]
        return [*super().params(), *self.mlp.params(), *norms, self.factors]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        mlp_norm, after_mlp, experts_norm, after_experts, router_norm = self.norms
        dense = after_mlp(self.mlp(mlp_norm(x, weights), weights), weights)
        router_input = ops.scale(router_norm(x, weights), factor=self.router.width**-0.5)
        shares, ids = ops.route(
            self.router(router_input, weights),
            None,
            weights[self.factors.name],
            k=self.experts.used,
            scores="softmax",
            renormalize=True,
        )
        x = experts_norm(x, weights)
        inner = ops.activate_mul(self.gates[0](x, weights, ids), self.up(x, weights, ids), kind=self.mlp.activation)
        mixed = ops.combine_experts(self.down(inner, weights, ids), shares)
        return ops.add(dense, after_experts(mixed, weights))
