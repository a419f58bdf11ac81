"""Hugging Face folders of LFM2."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, LAYER
from sporelm.checkpoints.lfm2_layers import CONV_ROWS, LAYER_TYPES, with_attention_layers
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import Squeeze, TakeRows, Transpose
from sporelm.models.architectures.lfm2 import Lfm2, Lfm2Config
from sporelm.models.config import MAX_CONV_KERNEL, MAX_WIDTH, ModelConfig

MLP: Final = f"{LAYER}feed_forward."
LFM2_HF_KEYS: Final = (
    Key("conv_kernel", "conv_L_cache", "u32", 2, MAX_CONV_KERNEL),
    Key("eps", "norm_eps", "f32"),
)
LFM2_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "rope_theta": 1e6,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128000,
}
LFM2_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    "output_norm.weight": "model.embedding_norm.weight",
    "layers.{}.attn_norm.weight": f"{LAYER}operator_norm.weight",
    "layers.{}.ffn_norm.weight": f"{LAYER}ffn_norm.weight",
    "layers.{}.attn_o.weight": f"{ATTENTION}out_proj.weight",
    "layers.{}.attn_q_norm.weight": f"{ATTENTION}q_layernorm.weight",
    "layers.{}.attn_k_norm.weight": f"{ATTENTION}k_layernorm.weight",
    "layers.{}.ffn_gate.weight": f"{MLP}w1.weight",
    "layers.{}.ffn_up.weight": f"{MLP}w3.weight",
    "layers.{}.ffn_down.weight": f"{MLP}w2.weight",
    **{
        f"layers.{{}}.conv_{name}.weight": StoredAs(f"{LAYER}conv.in_proj.weight", TakeRows(rows))
        for name, rows in CONV_ROWS.items()
    },
    "layers.{}.conv_o.weight": f"{LAYER}conv.out_proj.weight",
    "layers.{}.short_conv.weight": StoredAs(f"{LAYER}conv.conv.weight", Squeeze((1,), to_four=True), Transpose()),
}


def with_adjusted_width(values: ConfigValues) -> ConfigValues:
    """Return the values with the actual width of the feed-forward block, and with today's key of a tied output."""
    ffn = values.get("block_ff_dim", values.get("intermediate_size"))
    multiple, factor = values.get("block_multiple_of", 256), values.get("block_ffn_dim_multiplier", 1.0)
    if values.get("block_auto_adjust_ff_dim", True) and type(ffn) is int and type(multiple) is int and multiple > 0:
        ffn = 2 * ffn // 3
        if isinstance(factor, int | float) and 0 < factor < 1e3 and ffn <= MAX_WIDTH:
            ffn = int(factor * ffn)
        ffn = multiple * -(-ffn // multiple)
    tied = values.get("tie_embedding", values.get("tie_word_embeddings", True))
    return values.with_changes({"intermediate_size": ffn, "tie_word_embeddings": tied})


def layer_types_json(config: ModelConfig) -> dict[str, Any]:
    """Return `layer_types` of config.json."""
    assert isinstance(config, Lfm2Config)
    return {"layer_types": [LAYER_TYPES[layer in config.attention_layers] for layer in range(config.layers)]}


@register
class Lfm2ForCausalLM(HfSchema):
    """LFM2."""

    model_type = "lfm2"
    architecture = Lfm2
    keys = hf_keys(*LFM2_HF_KEYS)
    defaults = LFM2_DEFAULTS
    supported = {"conv_bias": (False,)}
    tensors = LFM2_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_adjusted_width(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Lfm2Config)
        return with_attention_layers(config, values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**layer_types_json(config), "block_auto_adjust_ff_dim": False}
