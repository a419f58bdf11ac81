"""Hugging Face folders of Command-R7B and Command-A."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.cohere import COHERE_CONSTANTS
from sporelm.checkpoints.gguf.cohere2 import WINDOW_STEP, without_rotation_in_full_layers
from sporelm.checkpoints.hf.cohere import COHERE_DEFAULTS, COHERE_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.cohere2 import Cohere2
from sporelm.models.config import ModelConfig


@register
class Cohere2ForCausalLM(HfSchema):
    """Command-R7B."""

    model_type = "cohere2"
    architecture = Cohere2
    keys = hf_keys(*COHERE_KEYS, Key("head_dim", "head_dim", "u32"))
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window"}
    defaults = COHERE_DEFAULTS
    constants = COHERE_CONSTANTS
    supported = {"hidden_act": ("silu",), "use_qk_norm": (False,), "rotary_pct": (1.0,)}
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        config = with_windows(config, values, WINDOW_STEP, step_key="sliding_window_pattern")
        return without_rotation_in_full_layers(config, values.where)
