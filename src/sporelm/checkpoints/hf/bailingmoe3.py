"""Hugging Face folders of Ling 3."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.delta_net_keys import LAYER_TYPES, layer_types_json, split_conv_tensors
from sporelm.checkpoints.expert_keys import hf_expert_keys, with_leading_dense_layers
from sporelm.checkpoints.gguf.bailingmoe3 import BAILING3_CONSTANTS, LOWER_BOUND_KEY, with_swiglu_limits
from sporelm.checkpoints.gguf.kimi_linear import with_kda_layers
from sporelm.checkpoints.hf.bailingmoe import BAILING_ATTENTION
from sporelm.checkpoints.hf.bailingmoe2 import BAILING2_EXPERT_KEYS, SHARED_WIDTH
from sporelm.checkpoints.hf.kimi_linear import KDA_HF_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema, get_latent
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import NegativeExp
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.bailingmoe3 import BailingMoe3, BailingMoe3Config
from sporelm.models.config import MAX_LAYERS, ModelConfig

# Keys of transformers -> published keys.
PUBLISHED_KEYS: Final = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_local_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "n_shared_experts": "num_shared_experts",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
LIMITS: Final = "expert_swiglu_limit_list"
SHARED_LIMITS: Final = "share_expert_swiglu_limit_list"


def _with_published_attention(tensors: TensorTable) -> TensorTable:
    """Return the tensors with the published names of attention."""
    return {
        parameter: tuple(
            StoredAs(
                each.name.replace(f"{ATTENTION}o_proj", f"{BAILING_ATTENTION}dense").replace(
                    ATTENTION, BAILING_ATTENTION
                ),
                *each.transforms,
            )
            for each in alternatives(row)
        )
        for parameter, row in tensors.items()
    }


def _with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return a config.json with transformers' key for each number. The rotary dimensions of a head are
    `qk_rope_head_dim`, regardless of `partial_rotary_factor`; `head_dim` is that of delta nets. Missing limits are
    0."""
    found = dict(values.values)
    found |= {makers: values.get(name) for name, makers in PUBLISHED_KEYS.items() if name in values.values}
    found["linear_conv_kernel_dim"] = found.get("short_conv_kernel_size")
    found["linear_head_dim"] = values.get("linear_head_dim", values.get("head_dim"))
    found["linear_num_heads"] = values.get("num_attention_heads")
    found.pop(PARTIAL, None)
    if isinstance(rope := values.get("rope_parameters"), Mapping):
        found["rope_parameters"] = {name: value for name, value in rope.items() if name != PARTIAL}
    layers = values.get("num_hidden_layers")
    for name in (LIMITS, SHARED_LIMITS):
        if isinstance(limits := values.get(name), list) and type(layers) is int and layers <= MAX_LAYERS:
            found[name] = limits + [0] * (layers - len(limits))
    return with_leading_dense_layers(values.with_values(found))


@register
class BailingHybridForCausalLM(LatentHfSchema):
    """Ling 3 in transformers. Each group of layers ends with attention."""

    model_type = "bailing_hybrid"
    architecture = BailingMoe3
    keys = hf_keys(
        *LATENT_HF_KEYS,
        *KDA_HF_KEYS,
        LOWER_BOUND_KEY._replace(key="kda_lower_bound"),
        *BAILING2_EXPERT_KEYS,
        *hf_expert_keys(shared_ffn=SHARED_WIDTH),
    )
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_experts": 512,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 768,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "layer_group_size": 6,
        "first_k_dense_replace": 2,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "rope_theta": 6e6,
        "max_position_embeddings": 262144,
    }
    constants = {**BAILING3_CONSTANTS, "delta_net.num_key_heads": 0}
    supported = {
        "hidden_act": ("silu",),
        "rope_interleave": (True,),
        "attention_bias": (False,),
        "gated_attention_proj_granularity_type": ("head_wise",),
        "score_function": ("sigmoid",),
        "use_mla_nope": (False,),
        "use_bias": (False,),
        "use_qkv_bias": (False,),
        "value_norm": (False,),
        "up_proj_norm": (False,),
        "use_nGPT": (False,),
        "scale_router_input": (False,),
        "no_kda_lora": (True,),
        "moe_router_enable_expert_bias": (True,),
        "group_norm_size": (1,),
    }
    tensors = {
        **_with_published_attention(DECODER_TENSORS | LATENT_HF_TENSORS),
        "embedding.weight": "model.word_embeddings.weight",
        "layers.{}.attn_gate.weight": f"{BAILING_ATTENTION}g_proj.weight",
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(f"{MLP}gate.expert_bias"),
        **{f"layers.{{}}.delta_{name}.weight": f"{BAILING_ATTENTION}{name}_proj.weight" for name in "qkv"},
        **split_conv_tensors(BAILING_ATTENTION),
        "layers.{}.delta_alpha.weight": f"{BAILING_ATTENTION}f_proj.weight",
        "layers.{}.delta_z.weight": f"{BAILING_ATTENTION}g_proj.weight",
        "layers.{}.delta_beta.weight": f"{BAILING_ATTENTION}b_proj.weight",
        "layers.{}.delta.decay": StoredAs(f"{BAILING_ATTENTION}A_log", NegativeExp()),
        "layers.{}.delta_dt.bias": f"{BAILING_ATTENTION}dt_bias",
        "layers.{}.delta_norm.weight": f"{BAILING_ATTENTION}o_norm.weight",
        "layers.{}.delta_o.weight": f"{BAILING_ATTENTION}o_proj.weight",
    }
    has_mtp_layers = True
    resaved_names = ((".attention.o_proj.", ".attention.dense."),)
    module_names = ((".dense.", ".o_proj."), (".attention.", ".self_attn."), (".f_proj.", ".forget_gate.f_proj."))

    def class_for(self, config: ModelConfig) -> HfSchema:
        return BailingMoeV3ForCausalLM() if get_latent(config).q_lora_rank else BailingHybridForCausalLM()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = _with_transformers_keys(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, BailingMoe3Config)
        layer_types = values.get("layer_types")
        if layer_types is None:
            size = values.integer("layer_group_size", 1, MAX_LAYERS)
            rest = self.first_ungrouped_layer(config.layers, size)
            layer_types = [LAYER_TYPES[n >= rest or (n + 1) % size == 0] for n in range(config.layers)]
        config = with_kda_layers(config, layer_types, values)
        self.check_class(config, values)
        is_bounded = values.flag("kda_safe_gate", True)
        if is_bounded and not config.kda_lower_bound:  # no state would decay; in our configuration 0 means no bound
            what = "kda_lower_bound 0 is not supported; it must be negative"
            raise UnsupportedModel(f"{values.where}: {what}")
        return with_swiglu_limits(config, values, (LIMITS, SHARED_LIMITS), is_bounded=is_bounded)

    def first_ungrouped_layer(self, layers: int, size: int) -> int:
        """Return the first layer after the last complete group: it and all later layers have attention."""
        return layers

    def check_class(self, config: BailingMoe3Config, values: ConfigValues) -> None:
        """Raise UnsupportedModel for options that only the other class has."""
        experts = config.experts
        assert experts is not None
        if experts.shared_ffn not in (0, experts.shared * experts.ffn):
            what = f"{SHARED_WIDTH} must be {experts.shared * experts.ffn}, the width of all shared experts"
            raise UnsupportedModel(f"{values.where}: {what}; it is {experts.shared_ffn}")
        if config.latent.q_lora_rank:
            what = f"{self.class_name} does not support q_lora_rank {format_value(config.latent.q_lora_rank)}"
            raise UnsupportedModel(f"{values.where}: {what}; {BailingMoeV3ForCausalLM.__name__} does")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, BailingMoe3Config)
        shape = config.delta_net
        limits = {LIMITS: config.swiglu_limits, SHARED_LIMITS: config.shared_swiglu_limits}
        return {
            **super().extra_json(config),
            "head_dim": shape.key_head_dim,
            "short_conv_kernel_size": shape.conv_kernel,
            **layer_types_json(config.layers, config.attention_layers),
            "layer_group_size": min(config.attention_layers, default=config.layers) + 1,
            **{key: list(values) if any(values) else None for key, values in limits.items()},
            "kda_safe_gate": config.kda_lower_bound < 0,
            "num_nextn_predict_layers": 0,
        }


@register
class BailingMoeV3ForCausalLM(BailingHybridForCausalLM):
    """Ling 3 as published: layers after the last complete group have attention."""

    def first_ungrouped_layer(self, layers: int, size: int) -> int:
        return layers // size * size

    def check_class(self, config: BailingMoe3Config, values: ConfigValues) -> None:
        """Accept all configurations."""
