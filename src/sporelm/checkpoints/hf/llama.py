"""Hugging Face folders of Llama, Mistral, Mixtral and InternLM."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig


@register
class LlamaForCausalLM(HfSchema):
    """Llama. transformers ignores a window in its config.json."""

    model_type = "llama"
    architecture = Llama
    keys = hf_keys(
        *HF_ATTENTION_BIAS,
        Key("mlp_bias", "mlp_bias", "bool"),
        *hf_expert_keys(optional=True, count="num_local_experts", used="num_experts_per_tok"),
    )
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = DECODER_TENSORS | expert_tensors("model.layers.{}.block_sparse_moe.", ("w1", "w3", "w2"))
    has_window = False
    default_window: int | None = 4096

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        window = read_window(values, "sliding_window", self.default_window) if self.has_window else None
        return replace(config, window=window, full_layers=read_full_layers(values, config.layers))

    def class_for(self, config: ModelConfig) -> HfSchema:
        if config.experts:
            return MixtralForCausalLM()
        if config.window is None:
            return self
        if config.attention_bias or config.mlp_bias:
            raise UnsupportedModel("no transformers class has a sliding window together with biases")
        return MistralForCausalLM()


@register
class MistralForCausalLM(LlamaForCausalLM):
    """Mistral: Llama with a sliding window."""

    model_type = "mistral"
    defaults = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
    class_keys = {"sliding_window": "window"}
    has_window = True


@register
class MinistralForCausalLM(MistralForCausalLM):
    """Ministral."""

    model_type = "ministral"


@register
class MixtralForCausalLM(MistralForCausalLM):
    """Mixtral: Mistral with a mixture of experts."""

    model_type = "mixtral"
    defaults = {
        **MistralForCausalLM.defaults,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    default_window = None


@register
class InternLMForCausalLM(LlamaForCausalLM):
    """InternLM, with one flag for the biases of attention, and rotary parameters in an object of their own."""

    model_type = "internlm"
    defaults = {"max_position_embeddings": 2048}
    class_keys = {"bias": "attention_bias"}

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        rope = values.get("rotary") or {}  # "dynamic" scales only texts longer than the model's context
        if not isinstance(rope, dict) or rope.get("type", "dynamic") not in ("origin", "dynamic"):
            raise UnsupportedModel(
                f"config.json: rotary {format_value(rope)} is not supported; type origin and dynamic are"
            )
        theta = {"rope_theta": rope.get("base", 10000.0), **values.values}["rope_theta"]
        values = values.with_changes({"rope_theta": theta, "attention_bias": values.get("bias", True)})
        return super().config_from_json(values, dtype)


@register
class InternLM3ForCausalLM(LlamaForCausalLM):
    """InternLM 3, with two flags for biases, which must be equal."""

    model_type = "internlm3"
    defaults = {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
    class_keys = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        flags = {
            attribute: values.get(key, values.get(attribute, False))
            for attribute, key in (("attention_bias", "qkv_bias"), ("mlp_bias", "bias"))
        }
        if flags["attention_bias"] != flags["mlp_bias"]:
            raise UnsupportedModel("config.json: qkv_bias and bias differ, which is not supported; equal values are")
        return super().config_from_json(values.with_changes(flags), dtype)
