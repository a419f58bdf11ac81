"""Hugging Face folders of StarCoder2."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP, NORM_BIAS_TENSORS
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder2 import StarCoder2
from sporelm.models.config import ModelConfig


@register
class Starcoder2ForCausalLM(HfSchema):
    """StarCoder2."""

    model_type = "starcoder2"
    architecture = StarCoder2
    keys = hf_keys(Key("eps", "norm_epsilon", "f32"))
    class_keys = {"sliding_window": "window"}
    defaults = {
        "tie_word_embeddings": True,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
    }
    constants = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
    supported = {"hidden_act": ("gelu_pytorch_tanh",), "use_bias": (True,)}
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"{MLP}{stored}.{part}"
            for name, stored in (("up", "c_fc"), ("down", "c_proj"))
            for part in ("weight", "bias")
        },
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        return replace(config, window=read_window(values, "sliding_window", None))
