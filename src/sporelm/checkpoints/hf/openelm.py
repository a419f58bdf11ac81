"""Hugging Face folders of OpenELM."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_gate_up_tensors, fused_qkv_tensors
from sporelm.checkpoints.per_layer_shapes import whole_numbers, with_hf_lists, with_layer_shapes
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.openelm import OpenELM
from sporelm.models.config import MAX_WIDTH, ModelConfig
from sporelm.models.layer_shapes import LayerShapesConfig

LAYER: Final = "transformer.layers.{}."
FFN_DIVISOR: Final = 256  # widths of feed-forward blocks are multiples of it


def with_shapes_of_layers(values: ConfigValues) -> ConfigValues:
    """Return the values with lists of the heads and of the feed-forward width of each layer. Raises ModelFileError if
    they are missing."""
    values = values.with_values({"ffn_dim_divisor": FFN_DIVISOR, **values.values})
    width = values.integer("model_dim", 1, MAX_WIDTH)
    divisor = values.integer("ffn_dim_divisor", 1, MAX_WIDTH)
    factors: Any = values.get("ffn_multipliers")
    if not isinstance(factors, list) or not all(
        isinstance(factor, int | float) and 0 < factor < MAX_WIDTH for factor in factors
    ):
        what = f"ffn_multipliers is {format_value(factors)}; it must be a number for each layer"
        raise ModelFileError(f"{values.where}: {what}")
    lists = {
        "layer_heads": whole_numbers(values.get("num_query_heads")),
        "layer_kv_heads": whole_numbers(values.get("num_kv_heads")),
        "layer_ffn": [_round_width(factor * width, divisor) for factor in factors],
    }
    theta = values.get("rope_freq_constant", 10000)
    return with_hf_lists(values.with_changes({"rope_theta": theta, "tie_word_embeddings": True}), lists)


def _round_width(width: float, divisor: int) -> int:
    """Return the nearest multiple of the divisor, or the next higher one if that is less than 90 % of the width."""
    nearest = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return nearest + divisor * (nearest < 0.9 * width)


@register
class OpenELMForCausalLM(HfSchema):
    """OpenELM. The lists of heads and of factors of the feed-forward width have an entry for each layer."""

    model_type = "openelm"
    architecture = OpenELM
    keys = hf_keys(
        Key("layers", "num_transformer_layers", "u32"),
        Key("width", "model_dim", "u32"),
    )
    defaults = {"head_dim": 128, "max_context_length": 2048}
    supported = {
        "activation_fn_name": ("swish", "silu"),
        "ffn_with_glu": (True,),
        "normalize_qk_projections": (True,),
        "share_input_output_layers": (True,),
        "normalization_layer_name": ("rms_norm",),
    }
    positions_key = "max_context_length"
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.token_embeddings.weight",
        "output_norm.weight": "transformer.norm.weight",
        "layers.{}.attn_norm.weight": f"{LAYER}attn_norm.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}ffn_norm.weight",
        **fused_qkv_tensors(f"{LAYER}attn.qkv_proj", parts=("weight",)),
        **{f"layers.{{}}.attn_{name}_norm.weight": f"{LAYER}attn.{name}_norm.weight" for name in "qk"},
        "layers.{}.attn_o.weight": f"{LAYER}attn.out_proj.weight",
        **fused_gate_up_tensors(f"{LAYER}ffn.proj_1.weight"),
        "layers.{}.ffn_down.weight": f"{LAYER}ffn.proj_2.weight",
    }

    def layer_config(self, config: ModelConfig, layer: int) -> ModelConfig:
        assert isinstance(config, LayerShapesConfig)
        return config.for_layer(layer)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> LayerShapesConfig:
        values = with_shapes_of_layers(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, LayerShapesConfig)
        return with_layer_shapes(config, values, low=1)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, LayerShapesConfig)
        return {
            "num_query_heads": list(config.layer_heads),
            "num_kv_heads": list(config.layer_kv_heads),
            "ffn_multipliers": [width / config.width for width in config.layer_ffn],
            "ffn_dim_divisor": 1 if any(width % FFN_DIVISOR for width in config.layer_ffn) else FFN_DIVISOR,
            "rope_freq_constant": config.rope_theta,
            "share_input_output_layers": True,
        }
