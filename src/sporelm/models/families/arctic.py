"""Snowflake Arctic: Llama with a feed-forward block as wide as its rows, and experts that read what attention reads."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, GatedMLP, Layer, Mixture, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import expert_fields, expert_names
from sporelm.weights.family import Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, Kind, Names, Param, changed

LAYER = "model.layers.{}."
EVERY = {"moe_layer_frequency": 1, "parallel_attn_mlp_res": True}
NAMES = changed(
    COMMON,
    *expert_names(f"{LAYER}block_sparse_moe.", ("w1", "w3", "w2")),
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", f"{LAYER}residual_layernorm.weight"),
    Names("layers.{}.ffn_norm_exps.weight", "blk.{}.ffn_norm_exps.weight", f"{LAYER}post_attention_layernorm.weight"),
    *(
        Names(f"layers.{{}}.ffn_{part}.weight", f"blk.{{}}.ffn_{part}.weight", f"{LAYER}residual_mlp.{hf}.weight")
        for part, hf in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    ),
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if config.experts is not None and config.experts.used == 1:
        raise UnsupportedModel(f"{values.where}: one expert a token is not supported: its weight would be no share")
    return config


class DenseBesideExperts(Layer):
    """x' + mlp(norm(x')) + experts(norm(x)) of x' = x + attention(norm(x)) (the dense-MoE hybrid of Snowflake 2024)."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        norms = [RMSNorm(f"{name}.{part}", config.width, config.eps) for part in ("attn_norm", "ffn_norm")]
        mlp = GatedMLP(name, config, ffn=config.width)
        super().__init__(norms[0], Attention(name, config), norms[1], mlp)
        self.experts_norm = RMSNorm(f"{name}.ffn_norm_exps", config.width, config.eps)
        self.experts = Mixture(name, config)

    def params(self) -> list[Param]:
        return [*super().params(), *self.experts_norm.params(), *self.experts.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        mixed = self.experts(self.experts_norm(x, weights), weights)
        return ops.add(super().__call__(x, step, weights, *caches), mixed)


@architecture(
    Family(
        "arctic",
        (HfClass("ArcticForCausalLM", "arctic", {"moe_layer_frequency": 2, "parallel_attn_mlp_res": False}),),
        fields(*expert_fields(count="num_local_experts", used="num_experts_per_tok"), without=("window",)),
        NAMES,
        fixed={"experts.renormalize": True},
        only={"hidden_act": ("silu",), "sliding_window": (None,), **{key: (value,) for key, value in EVERY.items()}},
        finish=_finished,
        words=lambda config: dict(EVERY),
        paired_rows=True,
    )
)
class Arctic(Decoder):
    """Layers of a dense block beside experts (Snowflake 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return DenseBesideExperts(f"layers.{index}", config)
