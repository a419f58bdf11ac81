"""Hugging Face folders of EmbeddingGemma."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderHfSchema
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma3 import LOCAL_THETA, WINDOW_STEP
from sporelm.checkpoints.hf.gemma2 import query_scalar_json, with_query_scalar
from sporelm.checkpoints.hf.gemma3 import GEMMA3_DEFAULTS, Gemma3ForCausalLM, with_rope_of_full_layers
from sporelm.checkpoints.hf_tensors import without_prefix
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma_embedding import GemmaEmbedding
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig


@register
class Gemma3TextModel(EncoderHfSchema):
    """EmbeddingGemma. Folders of Gemma 3's decoder have the same class; they are rejected, since its attention is
    causal."""

    model_type = "gemma3_text"
    architecture = GemmaEmbedding
    keys = hf_keys(Key("local_theta", "rope_local_base_freq", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    class_keys = {"sliding_window": "window"}
    defaults = GEMMA3_DEFAULTS
    supported = {
        "use_bidirectional_attention": (True,),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "attn_logit_softcapping": (None,),
    }
    tensors = without_prefix(Gemma3ForCausalLM.tensors)
    optional_prefixes = ("model.",)
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        values = with_rope_of_full_layers(values)
        values = values.with_values({"use_bidirectional_attention": False, **values.values})
        config = with_query_scalar(with_scaled_embedding(super().config_from_json(values, dtype)), values)
        return with_windows(config, values, WINDOW_STEP, step_key="sliding_window_pattern")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return query_scalar_json(config)
