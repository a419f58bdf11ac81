"""Hugging Face folders of Maincoder."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.hunyuan import Hunyuan
from sporelm.models.config import ModelConfig


@register
class MaincoderForCausalLM(HfSchema):
    """Maincoder."""

    model_type = "maincoder"
    architecture = Hunyuan
    keys = hf_keys(Key("ffn", "intermediate_size_mlp", "u32"))
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 96,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }
    constants = {"rope_style": "adjacent"}
    supported = {"hidden_act": ("silu",), "use_qk_norm": (True,), "attention_bias": (False,)}
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **{
            f"layers.{{}}.ffn_{name}.weight": f"{LAYER}feed_forward.{name}_proj.weight"
            for name in ("gate", "up", "down")
        },
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        if "intermediate_size_mlp" not in values.values:
            values = values.with_changes({"intermediate_size_mlp": values.get("intermediate_size")})
        return super().config_from_json(values, dtype)
