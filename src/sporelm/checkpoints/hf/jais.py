"""Hugging Face folders of Jais 1."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.jais import JAIS_CONSTANTS, with_score_scale_by_width
from sporelm.checkpoints.hf.gpt2 import GPT2_KEYS, LAYER, MASK_TENSORS, gpt2_tensors
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Transpose
from sporelm.models.architectures.jais import Jais
from sporelm.models.config import ModelConfig

MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 1e6
# Keys of the later models -> keys of the first ones.
FIRST_KEYS: Final = {"embeddings_scale": "mup_embeddings_scale", "scale_qk_dot_by_d": "mup_scale_qk_dot_by_d"}


def with_later_keys(values: ConfigValues) -> ConfigValues:
    """Return the values under the keys of later models."""
    found = {key: values.get(first) for key, first in FIRST_KEYS.items() if first in values.values}
    if "width_scale" not in values.values and "mup_width_scale" in values.values:
        numbers = ConfigValues({"mup_output_alpha": 1.0, **values.values}, "config.json")
        alpha = numbers.number("mup_output_alpha", MIN_SCALE, MAX_SCALE)
        found["width_scale"] = alpha * numbers.number("mup_width_scale", MIN_SCALE, MAX_SCALE)
    return values.with_values({**found, **values.values})


@register
class JAISLMHeadModel(HfSchema):
    """Jais 1: GPT-2 with a gate."""

    model_type = "jais"
    architecture = Jais
    keys = hf_keys(
        *GPT2_KEYS,
        Key("scales.embedding", "embeddings_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
        Key("scales.output", "width_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
        without=("head_dim", "kv_heads"),
    )
    defaults = {
        "tie_word_embeddings": True,
        "n_positions": 2048,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "position_embedding_type": "learned",
    }
    constants = JAIS_CONSTANTS
    supported = {
        "activation_function": ("swiglu",),
        "position_embedding_type": ("alibi",),
        "alibi_scaling": (None,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = {
        **gpt2_tensors(is_transposed=True),
        "layers.{}.ffn_gate.weight": StoredAs(f"{LAYER}mlp.c_fc2.weight", Transpose()),
        "layers.{}.ffn_gate.bias": f"{LAYER}mlp.c_fc2.bias",
    }
    ignored_tensors = (*MASK_TENSORS, "transformer.relative_pe.slopes")
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_later_keys(values)
        is_by_width = values.flag("scale_qk_dot_by_d", False)
        return with_score_scale_by_width(super().config_from_json(values, dtype), is_by_width=is_by_width)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"scale_qk_dot_by_d": config.scales.attention is not None}
