"""Hugging Face folders of Qwen1.5-MoE and Qwen2-57B-A14B."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP, expert_tensors, shared_expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

QWEN_EXPERT_KEYS: Final = hf_expert_keys(
    count="num_experts",
    used="num_experts_per_tok",
    ffn="moe_intermediate_size",
    renormalize="norm_topk_prob",
    step="decoder_sparse_step",
)
Config = TypeVar("Config", bound=ModelConfig)


def read_mlp_only_layers(values: ConfigValues, default: tuple[int, ...] = ()) -> frozenset[int]:
    """Return the layers in `mlp_only_layers`; the default if it is absent."""
    given = values.get("mlp_only_layers")
    layers = list(default) if given is None else given
    if not isinstance(layers, list) or any(type(layer) is not int or layer < 0 for layer in layers):
        raise ModelFileError(
            f"{values.where}: mlp_only_layers is {format_value(layers)}; it must be a list of layer numbers"
        )
    return frozenset(layers)


def with_mlp_only_layers(config: Config, values: ConfigValues) -> Config:
    """Return the configuration without experts in the layers of `mlp_only_layers`."""
    assert config.experts is not None
    return replace(config, experts=replace(config.experts, dense=read_mlp_only_layers(values)))


@register
class Qwen2MoeForCausalLM(HfSchema):
    """Qwen2 with a mixture of experts."""

    model_type = "qwen2_moe"
    architecture = Llama
    keys = hf_keys(*QWEN_EXPERT_KEYS, *hf_expert_keys(shared_ffn="shared_expert_intermediate_size"))
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    }
    constants = {"attention_bias": True, "experts.shared_gate": True}
    supported = {"hidden_act": ("silu",), "qkv_bias": (True,)}
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(f"{MLP}shared_expert."),
        "layers.{}.ffn_gate_inp_shexp.weight": f"{MLP}shared_expert_gate.weight",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        return with_mlp_only_layers(with_optional_windows(config, values), values)
