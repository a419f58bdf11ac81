"""What config.json and the GGUF metadata of Ling 3 call its numbers: its makers' words, and those of transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import with_leading
from sporelm.checkpoints.family import Field, HfClass
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.swiglu_limits import read_swiglu_limits as limits_of
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.families import kimi_words
from sporelm.models.families.delta_fields import KINDS
from sporelm.models.families.layer_kinds import attention_layers

HYBRID, MAKERS = "BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"
# The words of transformers -> those of its makers, who have `head_dim` for that of the delta nets.
WORDS = {"model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob"}
WORDS |= {"num_expert_group": "n_group", "num_local_experts": "num_experts"}
WORDS |= {"num_experts_per_token": "num_experts_per_tok", "n_shared_experts": "num_shared_experts"}
WORDS["linear_conv_kernel_dim"] = "short_conv_kernel_size"
LIMITS = {
    "limits": ("expert_swiglu_limit_list", "swiglu_clamp_exp"),
    "shared_limits": ("share_expert_swiglu_limit_list", "swiglu_clamp_shexp"),
}
MOST_DECAY = 100.0
DEFAULTS: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
DEFAULTS |= {"num_experts": 512, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 768}
DEFAULTS |= {"head_dim": 128, "short_conv_kernel_size": 4, "layer_group_size": 6, "first_k_dense_replace": 2}
DEFAULTS |= {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
DEFAULTS |= {"rope_theta": 6e6, "max_position_embeddings": 262144}
FLAGS = (("norm_topk_prob", "experts.renormalize"),)
CLASSES = tuple(HfClass(name, "bailing_hybrid", DEFAULTS, FLAGS) for name in (HYBRID, MAKERS))
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "rope_interleave": (True,), "attention_bias": (False,)}
ONLY |= {"gated_attention_proj_granularity_type": ("head_wise",), "score_function": ("sigmoid",)}
ONLY |= dict.fromkeys(("use_mla_nope", "use_bias", "use_qkv_bias", "value_norm", "up_proj_norm"), (False,))
ONLY |= dict.fromkeys(("use_nGPT", "scale_router_input"), (False,))
ONLY |= {"no_kda_lora": (True,), "moe_router_enable_expert_bias": (True,), "group_norm_size": (1,)}


@dataclass(frozen=True)
class LingShape(kimi_words.KimiShape):
    """With the bound of decays, and the limits of each layer's experts, and of the block beside them; 0: none."""

    least: float = 0.0  # e to the power of it is what a row leaves of a state at least
    limits: tuple[float, ...] = ()
    shared_limits: tuple[float, ...] = ()


BOUND = Field("own.least", "kda.gate_lower_bound", "f32", "kda_lower_bound", -MOST_DECAY, 0.0, -5.0)
FIELDS = (*kimi_words.FIELDS, BOUND)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Its makers' words for those of transformers; what is rotated is `qk_rope_head_dim` alone, whatever is said."""
    found = values | {ours: values[name] for name, ours in WORDS.items() if name in values}
    found["linear_conv_kernel_dim"] = found.get("short_conv_kernel_size")
    found["linear_head_dim"] = values.get("linear_head_dim", values.get("head_dim"))
    found["linear_num_heads"] = values.get("num_attention_heads")
    found.pop("partial_rotary_factor", None)
    if isinstance(rope := values.get("rope_parameters"), Mapping):
        found["rope_parameters"] = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    layers = values.get("num_hidden_layers")
    for name, _ in LIMITS.values():  # short lists mean that layers after them have none
        if isinstance(limits := values.get(name), list) and type(layers) is int and layers <= MOST_LAYERS:
            found[name] = limits + [0] * (layers - len(limits))
    return with_leading(latent.reworded(found))


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers are attention: the last of each group, and, as its makers have it, those after the last group."""
    config, own, experts = latent.finished(config, values, kind), config.own, config.experts
    assert experts is not None
    told = values.values.get("layer_types")
    if told is None and kind == HF:
        size = values.integer("layer_group_size", 1, MOST_LAYERS)
        rest = config.layers // size * size if config.architecture == MAKERS else config.layers
        told = [KINDS[layer >= rest or (layer + 1) % size == 0] for layer in range(config.layers)]
    attention = attention_layers(values, told or [], config.layers)
    if config.architecture == HYBRID and experts.shared_ffn not in (0, experts.shared * experts.ffn):
        what = f"moe_shared_expert_intermediate_size must be {experts.shared * experts.ffn}, as wide as its experts"
        raise UnsupportedModel(f"{values.where}: {what}; it is {experts.shared_ffn}")
    if own.q_rank and config.architecture == HYBRID:
        raise UnsupportedModel(f"{values.where}: {HYBRID} has no q_lora_rank, it is {shown(own.q_rank)}; {MAKERS} has")
    bounded = values.flag("kda_safe_gate" if kind == HF else "kda.safe_gate", True)
    if kind == HF and bounded and not own.least:  # a bound of 0, by which no state decays; 0 is no bound here
        raise UnsupportedModel(f"{values.where}: kda_lower_bound 0 is not supported; it must be below that")
    limits = {ours: limits_of(values, keys[kind != HF], config.layers) for ours, keys in LIMITS.items()}
    if any(limit for each in limits.values() for limit in each[: experts.leading]):
        raise UnsupportedModel(f"{values.where}: limits of layers without experts are not supported")
    own = replace(own, attention=attention, delta_heads=config.heads, least=own.least * bounded, **limits)
    return replace(config, own=own, experts=replace(experts, shared_ffn=experts.shared_width))


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """More of GGUF metadata."""
    limits = {gguf: ("[f32]", list(getattr(config.own, ours))) for ours, (_, gguf) in LIMITS.items()}
    found = {"kda.safe_gate": ("bool", True), **{key: entry for key, entry in limits.items() if any(entry[1])}}
    return kimi_words.said(config, "bailingmoe3") | {f"bailingmoe3.{key}": entry for key, entry in found.items()}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    own: LingShape = config.own
    kinds = [KINDS[layer in own.attention] for layer in range(config.layers)]
    found = {**latent.words(config), "head_dim": own.delta_dim, "short_conv_kernel_size": own.taps}
    found |= {"layer_types": kinds, "layer_group_size": min(own.attention, default=config.layers) + 1}
    limits = {hf: list(getattr(own, ours)) for ours, (hf, _) in LIMITS.items()}
    found |= {name: values if any(values) else None for name, values in limits.items()}
    return found | {"kda_safe_gate": own.least < 0, "num_nextn_predict_layers": 0}


def unsaid(config: ModelConfig) -> str:
    """Why a GGUF file cannot say what a configuration means."""
    return "" if config.own.least else "its decays have no bound"
