"""Hugging Face folders of GPT-NeoX Japanese."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, activation_key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf.gptneox import gptneox_tensors, rotary_json, with_rotary_names
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gpt_neox_japanese import GPTNeoXJapanese
from sporelm.models.config import ModelConfig

PREFIX: Final = "gpt_neox_japanese."
MAX_MULTIPLE: Final = 64
MAX_WIDTH: Final = 1 << 20


@register
class GPTNeoXJapaneseForCausalLM(HfSchema):
    """GPT-NeoX Japanese. The width of the feed-forward block is a multiple of the model's."""

    model_type = "gpt_neox_japanese"
    architecture = GPTNeoXJapanese
    keys = hf_keys(
        Key("eps", "layer_norm_eps", "f32"), activation_key("hidden_act", "gelu"), without=("kv_heads", "head_dim")
    )
    defaults = {"tie_word_embeddings": True, "layer_norm_eps": 1e-5}
    supported = {}
    tensors = {
        **gptneox_tensors(PREFIX),
        "output.weight": "embed_out.weight",
        "layers.{}.attn_o.bias": f"{PREFIX}layers.{{}}.attention.dense_bias",
    }
    ignored_tensors = (f"{PREFIX}layers.{{}}.attention.rotary_emb.inv_freq",)
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        multiple = values.integer("intermediate_multiple_size", 1, MAX_MULTIPLE, 4)
        ffn = multiple * values.integer("hidden_size", 1, MAX_WIDTH)
        values = with_rotary_names(values, 1.0).with_changes({"intermediate_size": ffn})
        return super().config_from_json(values, dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**rotary_json(config), "intermediate_multiple_size": config.ffn // config.width}
