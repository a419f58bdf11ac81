"""Hugging Face folders of Kimi Linear."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import LAYER_TYPES, layer_types_json, split_conv_tensors
from sporelm.checkpoints.expert_keys import hf_expert_keys, with_leading_dense_layers
from sporelm.checkpoints.gguf.kimi_linear import KIMI_CONSTANTS, usual_layer_types, with_kda_layers
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    LAYER,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import NegativeExp, Squeeze
from sporelm.models.architectures.kimi_linear import KimiLinear, KimiLinearConfig
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, ModelConfig

MOE: Final = f"{LAYER}block_sparse_moe."
LINEAR_CONFIG: Final = "linear_attn_config"
# Keys of that object -> keys of transformers' `KimiLinearConfig`.
LINEAR_KEYS: Final = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
# Lists of layers in it, counted from 1 -> their type.
LAYER_LISTS: Final = {"kda_layers": LAYER_TYPES[0], "full_attn_layers": LAYER_TYPES[1]}
# Keys of transformers -> published keys.
PUBLISHED_KEYS: Final = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_local_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "num_experts_per_tok": "num_experts_per_token",
}
KDA_HF_KEYS: Final = (
    Key("delta_net.conv_kernel", "linear_conv_kernel_dim", "u32", 2, MAX_CONV_KERNEL),
    Key("delta_net.num_value_heads", "linear_num_heads", "u32", 1, MAX_HEADS),
    Key("delta_net.key_head_dim", "linear_head_dim", "u32", 1, MAX_HEAD_DIM),
)


def with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return a config.json with one key for each number, and the types of layers as one list."""
    found: dict[str, Any] = {
        **values.values,
        **{makers: values.get(name) for name, makers in PUBLISHED_KEYS.items() if name in values.values},
    }
    linear, layers = values.get(LINEAR_CONFIG), values.get("num_hidden_layers")
    if isinstance(linear, Mapping):
        found |= {name: linear[key] for key, name in LINEAR_KEYS.items() if key in linear}
        if values.get("layer_types") is None and all(isinstance(linear.get(name), list) for name in LAYER_LISTS):
            types = {n: kind for name, kind in LAYER_LISTS.items() for n in linear[name] if type(n) is int}
            count = layers if type(layers) is int and layers <= len(types) else len(types)
            found["layer_types"] = [types.get(number + 1) for number in range(count)]
    return with_leading_dense_layers(values.with_values(found))


@register
class KimiLinearForCausalLM(LatentHfSchema):
    """Kimi Linear. transformers 5 gives dense blocks the names of the mixture."""

    model_type = "kimi_linear"
    architecture = KimiLinear
    keys = hf_keys(
        *LATENT_HF_KEYS,
        *KDA_HF_KEYS,
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_token",
            ffn="moe_intermediate_size",
            shared="num_shared_experts",
            leading="first_k_dense_replace",
            scale="routed_scaling_factor",
            renormalize="moe_renormalize",
            groups="num_expert_group",
            top_groups="topk_group",
            scores="moe_router_activation_func",
        ),
    )
    class_keys = {"moe_renormalize": "experts.renormalize"}
    defaults = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.446,
        "rms_norm_eps": 1e-5,
        "model_max_length": 1 << 20,
        "topk_group": 1,
    }
    constants = {**KIMI_CONSTANTS, "delta_net.num_key_heads": 0}
    supported = {
        "hidden_act": ("silu",),
        "mla_use_nope": (True,),
        "moe_layer_freq": (1,),
        "attention_bias": (False,),
        "use_grouped_topk": (True,),
        "num_nextn_predict_layers": (0,),
        "moe_router_activation_func": ("sigmoid",),
    }
    positions_key = "model_max_length"
    tensors = {
        **DECODER_TENSORS,
        **LATENT_HF_TENSORS,
        **expert_tensors(MOE, ("w1", "w3", "w2")),
        **shared_expert_tensors(f"{MOE}shared_experts."),
        **choice_bias_tensors(f"{MOE}gate.e_score_correction_bias"),
        **{f"layers.{{}}.delta_{name}.weight": f"{ATTENTION}{name}_proj.weight" for name in "qkv"},
        **split_conv_tensors(ATTENTION),
        **{
            f"layers.{{}}.delta_{name}{end}.weight": f"{ATTENTION}{stored}{stored_end}_proj.weight"
            for name, stored in (("alpha", "f"), ("z", "g"))
            for end, stored_end in (("_a", "_a"), ("", "_b"))
        },
        "layers.{}.delta_beta.weight": f"{ATTENTION}b_proj.weight",
        "layers.{}.delta.decay": StoredAs(f"{ATTENTION}A_log", Squeeze((0, 1, 3)), NegativeExp()),
        "layers.{}.delta_dt.bias": f"{ATTENTION}dt_bias",
        "layers.{}.delta_norm.weight": f"{ATTENTION}o_norm.weight",
        "layers.{}.delta_o.weight": f"{ATTENTION}o_proj.weight",
    }
    resaved_names = ((".mlp.", ".block_sparse_moe."),)
    module_names = ((".block_sparse_moe.", ".mlp."), (".self_attn.f_", ".self_attn.forget_gate.f_"))
    allows_partial_rotary = False

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_transformers_keys(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, KimiLinearConfig)
        return with_kda_layers(config, values.get("layer_types") or usual_layer_types(config.layers), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, KimiLinearConfig)
        shape, layers = config.delta_net, range(config.layers)
        linear = {
            "head_dim": shape.key_head_dim,
            "num_heads": shape.num_value_heads,
            "short_conv_kernel_size": shape.conv_kernel,
            "kda_layers": [layer + 1 for layer in layers if layer not in config.attention_layers],
            "full_attn_layers": [layer + 1 for layer in layers if layer in config.attention_layers],
        }
        return {
            **super().extra_json(config),
            LINEAR_CONFIG: linear,
            **layer_types_json(config.layers, config.attention_layers),
            "mla_use_nope": True,
        }
