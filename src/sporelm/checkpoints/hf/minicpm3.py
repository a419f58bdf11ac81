"""Hugging Face folders of MiniCPM3."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.minicpm import MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.gguf.minicpm3 import MINICPM3_SCALES
from sporelm.checkpoints.hf.minicpm import depth_scale_json, with_depth_scales
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.minicpm3 import MiniCPM3
from sporelm.models.config import MAX_LAYERS, ModelConfig


@register
class MiniCPM3ForCausalLM(LatentHfSchema):
    """MiniCPM3."""

    model_type = "minicpm3"
    architecture = MiniCPM3
    keys = hf_keys(*LATENT_HF_KEYS, Key("scales.embedding", "scale_emb", "f32", MIN_SCALE, MAX_SCALE, 12.0))
    defaults = {
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        **MINICPM3_SCALES,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768,
    }
    supported = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
    tensors = DECODER_TENSORS | LATENT_HF_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = _with_absent_numbers(values)
        return with_depth_scales(super().config_from_json(values, dtype), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**super().extra_json(config), **depth_scale_json(config)}


def _with_absent_numbers(values: ConfigValues) -> ConfigValues:
    """Return a config.json with scales of 1 in place of null, and with the default width of values if it is missing."""
    found: dict[str, Any] = {}
    width, heads, layers = map(values.get, ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if values.get("scale_depth") is None and isinstance(layers, int):
        found["scale_depth"] = min(max(layers, 0), MAX_LAYERS) ** 0.5
    if values.get("dim_model_base") is None:
        found["dim_model_base"] = width
    if values.get("v_head_dim") is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        found["v_head_dim"] = width // heads
    return values.with_changes(found)
