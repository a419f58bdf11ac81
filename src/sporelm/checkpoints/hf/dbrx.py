"""Hugging Face folders of DBRX."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.dbrx import DBRX_ROUTING, MAX_CLIP
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import SplitHeads, Transpose
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.dbrx import Dbrx
from sporelm.models.config import ModelConfig

LAYER: Final = "transformer.blocks.{}."
ATTENTION: Final = f"{LAYER}norm_attn_norm."
EXPERTS: Final = f"{LAYER}ffn.experts.mlp."
NORMALIZE: Final = "moe_normalize_expert_weights"
# Keys of the objects in config.json -> keys of the schema.
INNER_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "attn_config": {"kv_n_heads": "kv_n_heads", "clip_qkv": "clip_qkv", "rope_theta": "rope_theta"},
    "ffn_config": {
        "ffn_hidden_size": "ffn_hidden_size",
        "moe_num_experts": "moe_num_experts",
        "moe_top_k": "moe_top_k",
        NORMALIZE: "norm_topk_prob",
    },
}
INNER_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "attn_config": {"kv_n_heads": 1},
    "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1, NORMALIZE: 1},
}
ACTIVATION: Final = {"name": "silu"}


def with_inner_values(values: ConfigValues) -> ConfigValues:
    """Return the values with those of the attention and expert objects. Raises UnsupportedModel for another
    normalization of expert weights, and for another activation function."""
    found: dict[str, Any] = {}
    for name, keys in INNER_KEYS.items():
        given = values.get(name) or {}
        if not isinstance(given, dict):
            raise UnsupportedModel(f"{name} must be an object (got {format_value(given)})")
        inner = {**INNER_DEFAULTS[name], **given}
        found |= {new: inner[key] for key, new in keys.items() if key in inner}
    norm = found["norm_topk_prob"]
    activation = (values.get("ffn_config") or {}).get("ffn_act_fn") or ACTIVATION
    if norm not in (None, 1) or activation != ACTIVATION:
        what = f"{NORMALIZE} {format_value(norm)} with ffn_act_fn {format_value(activation)}"
        raise UnsupportedModel(f"{what} is not supported; 1 or null with silu is")
    return values.with_values({**found, **values.values, "norm_topk_prob": norm is not None})


@register
class DbrxForCausalLM(HfSchema):
    """DBRX. The experts' matrices are stacked by rows; the down projections are [in, out]."""

    model_type = "dbrx"
    architecture = Dbrx
    keys = hf_keys(
        Key("layers", "n_layers", "u32"),
        Key("width", "d_model", "u32"),
        Key("ffn", "ffn_hidden_size", "u32"),
        Key("heads", "n_heads", "u32"),
        Key("kv_heads", "kv_n_heads", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        *hf_expert_keys(count="moe_num_experts", used="moe_top_k", renormalize="norm_topk_prob"),
        without=("head_dim",),
    )
    defaults = {"layer_norm_epsilon": 1e-5}
    constants = DBRX_ROUTING
    supported = {"tie_word_embeddings": (False,)}
    positions_key = "max_seq_len"
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.wte.weight",
        "output_norm.weight": "transformer.norm_f.weight",
        "layers.{}.attn_norm.weight": f"{ATTENTION}norm_1.weight",
        **fused_qkv_tensors(f"{ATTENTION}attn.Wqkv", parts=("weight",)),
        "layers.{}.attn_o.weight": f"{ATTENTION}attn.out_proj.weight",
        "layers.{}.ffn_norm.weight": f"{ATTENTION}norm_2.weight",
        "layers.{}.ffn_gate_inp.weight": f"{LAYER}ffn.router.layer.weight",
        "layers.{}.ffn_gate_exps.weight": StoredAs(f"{EXPERTS}w1", SplitHeads()),
        "layers.{}.ffn_up_exps.weight": StoredAs(f"{EXPERTS}v1", SplitHeads()),
        "layers.{}.ffn_down_exps.weight": StoredAs(f"{EXPERTS}w2", SplitHeads(), Transpose("dequantize")),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_inner_values(values)
        config = super().config_from_json(values, dtype)
        return replace(config, qkv_limit=values.number("clip_qkv", 0.0, MAX_CLIP, 0.0) or None)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        experts = config.experts
        assert experts is not None
        return {
            "attn_config": {
                "kv_n_heads": config.kv_heads,
                "clip_qkv": config.qkv_limit,
                "rope_theta": config.rope_theta,
            },
            "ffn_config": {
                "ffn_hidden_size": config.ffn,
                "moe_num_experts": experts.count,
                "moe_top_k": experts.used,
                NORMALIZE: 1.0 if experts.renormalize else None,
            },
        }
