"""A gated block and a mixture of experts side by side (Gemma 4)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.checkpoints.experts import fused_names, fused_parts
from sporelm.checkpoints.tensor_names import Names, Table
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param

LAYER = "model.layers.{}."
GATE_UP = f"{LAYER}experts.gate_up_proj"
# GGUF: llama.cpp's llama-arch.cpp. Hugging Face: the state dict of Gemma4ForCausalLM.
SIDE_NAMES: Table = (
    *fused_names(f"{LAYER}router.proj.weight", GATE_UP, f"{LAYER}experts.down_proj"),
    Names("layers.{}.ffn_gate_inp_norm.weight", "blk.{}.ffn_gate_inp.scale", f"{LAYER}router.scale"),
    Names("layers.{}.ffn_factors.weight", "blk.{}.ffn_down_exps.scale", f"{LAYER}router.per_expert_scale"),
    *(
        Names(
            f"layers.{{}}.ffn_{ours}_norm.weight",
            f"blk.{{}}.{gguf}.weight",
            f"{LAYER}{hf}_feedforward_layernorm_{number}.weight",
        )
        for ours, gguf, hf, number in (
            ("experts", "pre_ffw_norm_2", "pre", 2),
            ("dense_post", "post_ffw_norm_1", "post", 1),
            ("experts_post", "post_ffw_norm_2", "post", 2),
        )
    ),
)
FUSED: Table = fused_parts("blk.{}.ffn_gate_up_exps.weight")  # as llama.cpp's converter writes them


class ParallelMixture(Mixture):
    """norm(mlp(norm(x))) + norm(experts(norm(x))); the router reads x by a norm of its own."""

    def __init__(self, name: str, config: ModelConfig, mlp: GatedMLP) -> None:
        super().__init__(name, config)
        parts = ("ffn", "ffn_dense_post", "ffn_experts", "ffn_experts_post", "ffn_gate_inp")
        self.norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in parts]
        self.mlp, self.factors = mlp, Param(f"{name}.ffn_factors.weight", (self.experts.count,))

    def params(self) -> list[Param]:
        norms = [param for norm in self.norms for param in norm.params()]
        return [*super().params(), *self.mlp.params(), *norms, self.factors]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        first, dense_post, before, post, routing = self.norms
        dense = dense_post(self.mlp(first(x, weights), weights), weights)
        read = ops.scale(routing(x, weights), factor=self.router.width**-0.5)
        options = {"k": self.experts.used, "scores": "softmax", "renormalize": True}
        shares, ids = ops.route(self.router(read, weights), None, weights[self.factors.name], **options)
        x = before(x, weights)
        inner = ops.activate_mul(self.gates[0](x, weights, ids), self.up(x, weights, ids), kind=self.mlp.activation)
        mixed = ops.combine_experts(self.down(inner, weights, ids), shares)
        return ops.add(dense, post(mixed, weights))
