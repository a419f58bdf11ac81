"""Hugging Face folders of DeciLM and Llama-Nemotron."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS
from sporelm.checkpoints.per_layer_shapes import whole_numbers, with_hf_lists, with_layer_shapes
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.deci import Deci
from sporelm.models.config import MAX_HEADS, MAX_WIDTH, ModelConfig
from sporelm.models.layer_shapes import LayerShapesConfig

FFN_DIVISOR: Final = 256  # widths of feed-forward blocks are rounded up to multiples of it
# Keys of blocks that would change the result -> the supported value.
BLOCK_OPTIONS: Final = {
    "num_sink_tokens": None,
    "sparsify": None,
    "unshifted_sink": False,
    "window_length": None,
    "llama4": None,
}


def with_block_configs(values: ConfigValues) -> ConfigValues:
    """Return the values with lists of the heads and of the feed-forward width of each layer, from
    `num_key_value_heads_per_layer` or `block_configs`. Raises UnsupportedModel for unsupported blocks."""
    if (counts := values.get("num_key_value_heads_per_layer")) is not None:
        if not whole_numbers(counts):
            what = f"num_key_value_heads_per_layer is {format_value(counts)}"
            raise ModelFileError(f"{values.where}: {what}; it must be a number for each layer")
        return with_hf_lists(values, {"layer_kv_heads": counts})
    blocks: Any = values.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        return values
    width = values.integer("hidden_size", 1, MAX_WIDTH)
    heads = values.integer("num_attention_heads", 1, MAX_HEADS)
    lists: dict[str, list[int]] = {"layer_heads": [], "layer_kv_heads": [], "layer_ffn": []}
    for block in blocks:
        attention, ffn = _read_block(block, values.where)
        group = attention.integer("n_heads_in_group", 1, heads) if attention.get("n_heads_in_group") else 0
        if group and heads % group:
            what = f"{heads} query heads do not divide into groups of {group}"
            raise ModelFileError(f"{values.where}: block_configs: {what}")
        is_linear = attention.flag("replace_with_linear", False)
        lists["layer_heads"].append(heads if group or is_linear else 0)
        lists["layer_kv_heads"].append(heads // group if group else 0)
        factor = ffn.number("ffn_mult", 0, MAX_WIDTH) if ffn.get("ffn_mult") else 0.0
        lists["layer_ffn"].append(-(-int(2 * factor * width / 3) // FFN_DIVISOR) * FFN_DIVISOR)
    return with_hf_lists(values, lists)


def _read_block(block: Any, where: str) -> list[ConfigValues]:
    """Return the attention and feed-forward values of one layer."""
    parts = [block.get(name) if isinstance(block, dict) else None for name in ("attention", "ffn")]
    if not all(isinstance(part, dict) for part in parts):
        raise ModelFileError(
            f"{where}: a layer of block_configs is {format_value(block)}; it must have attention and ffn"
        )
    found = [ConfigValues({**BLOCK_OPTIONS, **(part or {})}, f"{where}: block_configs") for part in parts]
    for name, part in zip(("attention", "ffn"), found, strict=True):
        unsupported = [key for key, supported in BLOCK_OPTIONS.items() if part.get(key) != supported]
        if name == "ffn" and part.flag("replace_with_linear", False):
            unsupported.append("replace_with_linear")
        if unsupported:
            key = unsupported[0]
            raise UnsupportedModel(f"{part.where}: {key} {format_value(part.get(key))} is not supported")
    return found


@register
class DeciLMForCausalLM(HfSchema):
    """DeciLM, with KV heads for each layer, and Llama-Nemotron, with blocks for each layer."""

    model_type = "nemotron-nas"
    architecture = Deci
    defaults = {"rms_norm_eps": 1e-5}
    supported = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
    tensors = DECODER_TENSORS | {"layers.{}.attn_linear.weight": f"{ATTENTION}linear_attn.weight"}

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> LayerShapesConfig:
        values = with_block_configs(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, LayerShapesConfig)
        return with_layer_shapes(config, values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, LayerShapesConfig)
        if all(config.layer_kv_heads) and len({*config.layer_ffn, 0}) == 2:
            return {"model_type": "deci", "num_key_value_heads_per_layer": list(config.layer_kv_heads)}
        blocks = []
        for layer in range(config.layers):
            shape = config.for_layer(layer)
            attention = {
                "n_heads_in_group": shape.heads // shape.kv_heads if shape.kv_heads else None,
                "no_op": not shape.heads,
                "replace_with_linear": shape.heads > 0 and not shape.kv_heads,
            }
            ffn = {
                "ffn_mult": 1.5 * shape.ffn / config.width if shape.ffn else None,
                "no_op": not shape.ffn,
                "replace_with_linear": False,
            }
            blocks.append({"attention": attention, "ffn": ffn})
        return {"block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None}
