"""Hugging Face folders of Qwen3."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig


@register
class Qwen3ForCausalLM(HfSchema):
    """Qwen3. In embedding models and rerankers of it, tensor names lack the prefix "model."."""

    model_type = "qwen3"
    architecture = Qwen3
    keys = hf_keys(*HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768}
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | {"classifier.weight": "score.weight"}
    name_prefix = "model."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_optional_windows(super().config_from_json(values, dtype), values)
