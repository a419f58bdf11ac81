"""Hugging Face folders of Gemma 1."""

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import AddConstant
from sporelm.models.architectures.gemma import Gemma
from sporelm.models.config import ModelConfig


def stored_less_one(tensors: TensorTable) -> TensorTable:
    """Return norms whose stored weights are one less than the parameters."""
    return {name: StoredAs(alternatives(row)[0].name, AddConstant(1.0)) for name, row in tensors.items()}


# The norms of a decoder like Llama, stored as weight - 1.
NORMS_LESS_ONE = stored_less_one({name: row for name, row in DECODER_TENSORS.items() if name.endswith("norm.weight")})
GEMMA_DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "max_position_embeddings": 8192}
GEMMA_SUPPORTED = {"attention_bias": (False,), "use_bidirectional_attention": (False,)}


@register
class GemmaForCausalLM(HfSchema):
    """Gemma 1. "gelu" in old folders means the tanh approximation."""

    model_type = "gemma"
    architecture = Gemma
    defaults = {**GEMMA_DEFAULTS, "num_key_value_heads": 16}
    supported = {
        "hidden_act": ("gelu_pytorch_tanh", "gelu"),
        "hidden_activation": ("gelu_pytorch_tanh",),
        **GEMMA_SUPPORTED,
    }
    tensors = DECODER_TENSORS | NORMS_LESS_ONE

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return with_scaled_embedding(super().config_from_json(values, dtype))
