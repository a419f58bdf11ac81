"""A mixture with one expert per token, which multiplies its input by the weight, and a shared expert (Llama 4)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mixture import ExpertLinear
from sporelm.models.config import ModelConfig
from sporelm.models.params import Columns, Param, Rows


class PreWeightedMixture:
    """expert(x * weight) + shared(x): the weight is the sigmoid of the router's greatest score."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        count, width, ffn = config.experts.count, config.width, config.experts.ffn
        self.router = Linear(f"{name}.ffn_gate_inp", count, width)
        self.gate = ExpertLinear(f"{name}.ffn_gate_exps", (count, ffn, width), bias=False, split=Rows())
        self.up = ExpertLinear(f"{name}.ffn_up_exps", (count, ffn, width), bias=False, split=Rows())
        self.down = ExpertLinear(f"{name}.ffn_down_exps", (count, width, ffn), bias=False, split=Columns())
        self.shared = GatedMLP(name, config, part="_shexp", ffn=ffn)

    def params(self) -> list[Param]:
        parts = (self.router, self.gate, self.up, self.down, self.shared)
        return [param for part in parts for param in part.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        logits = self.router(x, weights)
        share, ids = ops.route(logits, k=1, scores="sigmoid")
        weighted = ops.combine_experts(x, share)
        inner = ops.silu_mul(self.gate(weighted, weights, ids), self.up(weighted, weights, ids))
        one, _ = ops.route(logits, k=1, scores="softmax_of_chosen")  # the softmax of a single score is 1
        mixed = ops.combine_experts(self.down(inner, weights, ids), one)
        return ops.add(mixed, self.shared(x, weights))
