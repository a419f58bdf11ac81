"""Hugging Face folders of the Code World Model."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.cwm import first_of_each_run
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

DEFAULT_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


@register
class CwmForCausalLM(HfSchema):
    """Code World Model. The class has default rotary parameters; rope_theta alone does not override them."""

    model_type = "cwm"
    architecture = Llama
    defaults = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
    supported = {"hidden_act": ("silu",), "mlp_bias": (False,)}
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each_run(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        if values.get("sliding_window") == 0:  # which transformers takes for none
            values = values.with_changes({"sliding_window": None})
        if not values.get("rope_scaling") and values.get("rope_parameters") is None:
            values = values.with_changes({"rope_scaling": None, "rope_parameters": DEFAULT_ROPE})
        config = super().config_from_json(values, dtype)
        full_layers = first_of_each_run(config.layers)
        if values.has("layer_types"):
            full_layers = read_full_layers(values, config.layers)
        window = read_window(values, "sliding_window", 8192) if len(full_layers) < config.layers else None
        return replace(config, window=window, full_layers=full_layers if window else frozenset())

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        kinds = [
            "full_attention" if config.window_of(layer) is None else "sliding_attention"
            for layer in range(config.layers)
        ]
        return {"layer_types": kinds, "sliding_window": config.window}
