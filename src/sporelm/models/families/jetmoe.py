"""JetMoE: experts in attention too, which make its queries and its outputs."""

from dataclasses import replace
from typing import Any

import numpy as np

from sporelm.checkpoints.experts import expert_fields, fused_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.forms import key_rows, stacked
from sporelm.checkpoints.tensor_names import COMMON, Names, Stored, changed
from sporelm.models.blocks import AttentionExperts, Layer, expert_head_tables, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

EPS = 1e-6  # of norms in layers, whatever config.json says; that of the last is its own
LAYER, BLOCK = "model.layers.{}.", "model.layers.{}.self_attention."
NUMBERS: dict[str, Any] = {"num_key_value_heads": 16, "kv_channels": 128, "num_local_experts": 8}
NUMBERS |= {"num_experts_per_tok": 2, "tie_word_embeddings": True, "max_position_embeddings": 4096}
NAMES = changed(
    COMMON,
    Names("layers.{}.attn_gate_inp.weight", "blk.{}.attn_gate_inp.weight", f"{BLOCK}experts.router.layer.weight"),
    *(
        Names(
            f"layers.{{}}.attn_{ours}_exps.weight",
            f"blk.{{}}.attn_{ours}_exps.weight",
            f"{BLOCK}experts.{hf}_linear.weight",
        )
        for ours, hf in (("q", "input"), ("output", "output"))
    ),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            f"blk.{{}}.attn_{part}.weight",
            Stored(f"{BLOCK}kv_proj.weight", rows=stacked(number, key_rows, key_rows)),
        )
        for number, part in enumerate("kv")
    ),
    Names("layers.{}.attn_mixture.bias", "blk.{}.attn_mixture.bias", f"{BLOCK}experts.bias"),
    *fused_names(*(f"{LAYER}mlp.{part}.weight" for part in ("router.layer", "input_linear", "output_linear"))),
    Names("layers.{}.ffn_mixture.bias", "blk.{}.ffn_mixture.bias", f"{LAYER}mlp.bias"),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """With the heads of a token's experts."""
    counts = [values.get(key) for key in ("num_key_value_heads", "num_experts_per_tok")]
    known = all(type(count) is int for count in counts)
    return {**values, "num_attention_heads": counts[0] * counts[1]} if known else values  # type: ignore[operator]


@architecture(
    Family(
        "jetmoe",
        (HfClass("JetMoeForCausalLM", "jetmoe", NUMBERS),),
        fields(
            Field("head_dim", "attention.key_length", "u32", "kv_channels"),
            Field("head_dim", "attention.value_length", "u32", ""),
            *expert_fields(count="num_local_experts", used="num_experts_per_tok"),
        ),
        NAMES,
        fixed={"experts.scores": "softmax_of_chosen", "experts.added": True},
        only={"activation_function": ("silu",)},
        reworded=_reworded,
    )
)
class JetMoe(Decoder):
    """Llama's layer, of experts in both blocks; each mixture has a bias (Shen et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(replace(config, eps=EPS), index, AttentionExperts(f"layers.{index}", config))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | expert_head_tables(self.config)
