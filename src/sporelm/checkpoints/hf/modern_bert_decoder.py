"""Hugging Face folders of ModernBERT's decoders."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.modern_bert import FULL_STEP, first_of_each
from sporelm.checkpoints.hf.modern_bert import (
    DEFAULT_WINDOW,
    MODERN_BERT_KEYS,
    MODERN_BERT_SUPPORTED,
    layer_types_json,
    modern_bert_tensors,
    read_step_or_full_layers,
    with_two_bases,
)
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.modern_bert_decoder import ModernBertDecoder, ModernBertDecoderConfig
from sporelm.models.config import ModelConfig


@register
class ModernBertDecoderForCausalLM(HfSchema):
    """ModernBERT's decoder. `local_attention` counts positions on both sides; the decoder attends to one side."""

    model_type = "modernbert-decoder"
    architecture = ModernBertDecoder
    keys = hf_keys(
        *MODERN_BERT_KEYS,
        Key("has_decoder_bias", "decoder_bias", "bool", default=True),
        without=("head_dim", "kv_heads"),
    )
    defaults = {
        "max_position_embeddings": 8192,
        "vocab_size": 50368,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    supported = MODERN_BERT_SUPPORTED
    tensors = {
        **modern_bert_tensors("model."),
        **{f"layers.{{}}.attn_{name}.weight": f"model.layers.{{}}.attn.{name}_proj.weight" for name in "qkv"},
        "output.weight": "decoder.weight",
        "embedding.bias": "decoder.bias",
        "output.bias": "decoder.bias",
        "output_dense.weight": "lm_head.dense.weight",
        "output_dense_norm.weight": "lm_head.norm.weight",
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each(FULL_STEP, layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_two_bases(values)
        config = super().config_from_json(values, dtype)
        full_layers = read_step_or_full_layers(values, config.layers)
        window = read_window(values, "local_attention", DEFAULT_WINDOW)
        return replace(config, window=window and window // 2, full_layers=full_layers)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, ModernBertDecoderConfig)
        both_sides = {"local_attention": 2 * (config.window or 0), "decoder_bias": config.has_decoder_bias}
        return {**both_sides, **layer_types_json(config)}
