"""The mixture of experts: a router picks a few gated feed-forward blocks for each token (Shazeer et al. 2017)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Param


class Mixture:
    """The weighted sum of the experts that `scores` of the router chose (`ops.route`); and of a shared one, which every
    token goes through, by a gate of its own, where the configuration has one."""

    def __init__(self, name: str, config: ModelConfig, *, scores: str) -> None:
        assert config.experts is not None
        self.experts, self.scores, self.name = config.experts, scores, name
        self.router = Linear(f"{name}.ffn_gate_inp", config.experts.count, config.width)
        count, width, ffn = config.experts.count, config.width, config.experts.ffn or config.ffn
        shapes = {"gate": (count, ffn, width), "up": (count, ffn, width), "down": (count, width, ffn)}
        self.matrices = {part: Param(f"{name}.ffn_{part}_exps.weight", shape) for part, shape in shapes.items()}
        self.shared: GatedMLP | None = None
        if config.experts.shared_ffn:
            self.shared = GatedMLP(name, config, part="_shexp", ffn=config.experts.shared_ffn)
            self.shared_gate = Linear(f"{name}.ffn_gate_inp_shexp", 1, width)

    def params(self) -> list[Param]:
        shared = [*self.shared_gate.params(), *self.shared.params()] if self.shared else []
        return [*self.router.params(), *self.matrices.values(), *shared]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        gate, up, down = (weights[self.matrices[part].name] for part in ("gate", "up", "down"))
        options: dict[str, Any] = {"k": self.experts.used, "scores": self.scores}
        options["renormalize"] = self.experts.renormalize
        shares, ids = ops.route(self.router(x, weights), **options)
        inner = ops.silu_mul(ops.linear_experts(x, gate, ids), ops.linear_experts(x, up, ids))
        mixed = ops.combine_experts(ops.linear_experts(inner, down, ids), shares)
        if self.shared is None:
            return mixed
        share, _ = ops.route(self.shared_gate(x, weights), k=1, scores="sigmoid")
        return ops.add(mixed, ops.combine_experts(self.shared(x, weights), share))
