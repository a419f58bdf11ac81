"""The Llama family: Llama, Mistral and Ministral (windows), Mixtral (experts), InternLM 1 and 3, SmolLM2, Minueza."""

from dataclasses import replace
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.ops.routing import MOST_EXPERTS
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.experts import SINGLE_EXPERTS, expert_names
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.weights.fields import Fields, shown
from sporelm.weights.names import COMMON, GGUF, HF, Kind, changed


def _windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """config.json of Llama may have a window too, which only Mistral's classes heed."""
    if kind != HF:
        return config
    window = None
    if config.architecture in ("MistralForCausalLM", "MinistralForCausalLM", "MixtralForCausalLM"):
        window = window_of(values, "sliding_window", None if config.experts else 4096)
    return replace(config, window=window, full_layers=full_layers_of(values, config.layers))


def _class(config: ModelConfig) -> str:
    if config.experts:
        return "MixtralForCausalLM"
    if config.window is None:
        return "LlamaForCausalLM"
    if config.attention_bias or config.mlp_bias:
        raise UnsupportedModel("a sliding window together with biases is of no class of transformers")
    return "MistralForCausalLM"


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """InternLM has a word of its own for attention's biases, InternLM3 two, which must agree for Llama's."""
    if values.get("architectures") == ["InternLMForCausalLM"]:
        rope = values.get("rotary") or {}  # "dynamic" scales what is longer than the model's context alone
        if not isinstance(rope, dict) or rope.get("type", "dynamic") not in ("origin", "dynamic"):
            raise UnsupportedModel(f"config.json: rotary {shown(rope)} is not supported; type origin and dynamic are")
        return {"rope_theta": rope.get("base", 10000.0), **values, "attention_bias": values.get("bias", True)}
    if values.get("architectures") != ["InternLM3ForCausalLM"]:
        return values
    first = {ours: values.get(old, values.get(ours, False)) for ours, old in INTERNLM3.items()}
    if first["attention_bias"] != first["mlp_bias"]:
        raise UnsupportedModel("config.json: qkv_bias and bias differ, which is not supported; both or none are")
    return {**values, **first}


INTERNLM3 = {"attention_bias": "qkv_bias", "mlp_bias": "bias"}
FLAGS = (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"))


@architecture(
    Family(
        "llama",
        (
            HfClass("LlamaForCausalLM", "llama", fields=FLAGS),
            HfClass(
                "MistralForCausalLM",
                "mistral",
                {"num_key_value_heads": 8, "max_position_embeddings": 131072},
                (("sliding_window", "window"),),
            ),
            HfClass(
                "MixtralForCausalLM",
                "mixtral",
                {"num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
                | {"rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
                (("sliding_window", "window"),),
            ),
            HfClass(
                "MinistralForCausalLM",
                "ministral",
                {"num_key_value_heads": 8, "max_position_embeddings": 131072},
                (("sliding_window", "window"),),
            ),
            HfClass(
                "InternLMForCausalLM", "internlm", {"max_position_embeddings": 2048}, (("bias", "attention_bias"),)
            ),
            HfClass(
                "InternLM3ForCausalLM",
                "internlm3",
                {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5},
                (("qkv_bias", "attention_bias"), ("bias", "mlp_bias")),
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
            Field("experts.count", "expert_count", "u32", "num_local_experts", 0, MOST_EXPERTS, 0),
            Field("experts.used", "expert_used_count", "u32", "num_experts_per_tok", 0, MOST_EXPERTS, 0),
        ),
        changed(COMMON, *expert_names("model.layers.{}.block_sparse_moe.", ("w1", "w3", "w2"))),
        others={GGUF: SINGLE_EXPERTS},
        fixed={"experts.scores": "softmax_of_chosen"},
        finish=_windowed,
        reworded=_reworded,
        choose=_class,
        paired_rows=True,
        windowless=True,
    )
)
class Llama(Decoder):
    """Norms in front, rotary attention of grouped queries, a SiLU-gated feed-forward block (Touvron et al. 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index)
