"""Hugging Face folders of RecurrentGemma."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.recurrent_gemma import (
    LOGIT_CAP,
    MAX_CAP,
    MIN_CAP,
    RECURRENT_GEMMA_CONSTANTS,
    with_recurrent_layers,
)
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.hybrid_layers import ATTENTION_TYPES, RECURRENT_TYPES
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import AddConstant, Squeeze, Transpose
from sporelm.models.architectures.recurrent_gemma import RecurrentGemma, RecurrentGemmaConfig
from sporelm.models.config import MAX_CONV_KERNEL, MAX_WIDTH, ModelConfig

BLOCK: Final = f"{LAYER}temporal_block."
LRU: Final = f"{BLOCK}rg_lru."
MLP: Final = f"{LAYER}mlp_block."
LAYER_TYPES: Final = {"attention": ATTENTION_TYPES[0], "recurrent": RECURRENT_TYPES[0]}
DEFAULT_BLOCK_TYPES: Final = ["recurrent", "recurrent", "attention"]  # repeated for all layers


def with_layer_types(values: ConfigValues, layers: int) -> ConfigValues:
    """Return the values with `block_types`, repeated for all layers, under other schemas' names."""
    block_types = values.get("block_types") if values.has("block_types") else DEFAULT_BLOCK_TYPES
    given = block_types if isinstance(block_types, list) else []
    kinds = [LAYER_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in given]
    return values.with_changes({"layer_types": (kinds * layers)[:layers]})


@register
class RecurrentGemmaForCausalLM(HfSchema):
    """RecurrentGemma. Stored weights of norms are one less; the feed-forward block is half as wide as config.json's
    value."""

    model_type = "recurrent_gemma"
    architecture = RecurrentGemma
    keys = hf_keys(
        Key("attention_bias", "attention_bias", "bool"),
        Key("logit_cap", "logits_soft_cap", "f32", MIN_CAP, MAX_CAP, LOGIT_CAP),
        Key("conv_kernel", "conv1d_width", "u32", 2, MAX_CONV_KERNEL),
        Key("lru_width", "lru_width", "u32", 1, MAX_WIDTH),
    )
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {
        "tie_word_embeddings": True,
        "conv1d_width": 4,
        PARTIAL: 0.5,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
    }
    constants = RECURRENT_GEMMA_CONSTANTS
    supported = {"hidden_activation": ("gelu_pytorch_tanh",)}
    tensors = {
        **DECODER_TENSORS,
        "output_norm.weight": StoredAs("model.final_norm.weight", AddConstant(1.0)),
        "layers.{}.attn_norm.weight": StoredAs(f"{LAYER}temporal_pre_norm.weight", AddConstant(1.0)),
        "layers.{}.ffn_norm.weight": StoredAs(f"{LAYER}channel_pre_norm.weight", AddConstant(1.0)),
        **{f"layers.{{}}.attn_{name}.{part}": f"{BLOCK}{name}_proj.{part}" for name in "qkvo" for part in PARTS},
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"{MLP}{name}_proj.{part}"
            for name in ("gate", "up", "down")
            for part in PARTS
        },
        **{f"layers.{{}}.lru_x.{part}": f"{BLOCK}linear_x.{part}" for part in PARTS},
        **{f"layers.{{}}.lru_y.{part}": f"{BLOCK}linear_y.{part}" for part in PARTS},
        **{f"layers.{{}}.lru_o.{part}": f"{BLOCK}linear_out.{part}" for part in PARTS},
        "layers.{}.lru_conv.weight": StoredAs(f"{BLOCK}conv_1d.weight", Squeeze((1,), to_four=True), Transpose()),
        "layers.{}.lru_conv.bias": f"{BLOCK}conv_1d.bias",
        "layers.{}.lru_fade.weight": StoredAs(f"{LRU}recurrent_gate_weight", Transpose("keep")),
        "layers.{}.lru_fade.bias": f"{LRU}recurrent_gate_bias",
        "layers.{}.lru_take.weight": StoredAs(f"{LRU}input_gate_weight", Transpose("keep")),
        "layers.{}.lru_take.bias": f"{LRU}input_gate_bias",
        "layers.{}.lru.decay": f"{LRU}recurrent_param",
    }
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        lru_width = values.get("lru_width" if values.has("lru_width") else "hidden_size")
        config = super().config_from_json(values.with_changes({"lru_width": lru_width}), dtype)
        assert isinstance(config, RecurrentGemmaConfig)
        config = with_recurrent_layers(config, with_layer_types(values, config.layers))
        return replace(config, ffn=config.ffn // 2, window=read_window(values, "attention_window_size", 2048))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, RecurrentGemmaConfig)
        kinds = ["attention" if layer in config.attention_layers else "recurrent" for layer in range(config.layers)]
        return {
            "block_types": kinds,
            "intermediate_size": 2 * config.ffn,
            "attention_window_size": config.window,
        }

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        return {PARTIAL: config.rotary / config.head_dim}
