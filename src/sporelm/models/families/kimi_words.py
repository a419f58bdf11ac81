"""What the config.json and the GGUF metadata of Kimi Linear call its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import meaning, with_leading
from sporelm.checkpoints.family import Field
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, ModelConfig
from sporelm.models.families.delta_fields import KINDS, MOST_TAPS
from sporelm.models.families.layer_kinds import by_key_heads, key_heads

LINEAR, LISTS = "linear_attn_config", {"kda_layers": KINDS[0], "full_attn_layers": KINDS[1]}
OF_LINEAR = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
OF_LINEAR |= {"short_conv_kernel_size": "linear_conv_kernel_dim"}
ALIASES = {"max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize"}
ALIASES |= {"n_group": "num_expert_group", "num_local_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
ALIASES |= {"num_experts_per_tok": "num_experts_per_token"}
DEFAULTS: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
DEFAULTS |= {"num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024}
DEFAULTS |= {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "first_k_dense_replace": 1}
DEFAULTS |= {"routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5, "model_max_length": 1 << 20, "topk_group": 1}


@dataclass(frozen=True)
class KimiShape(latent.LatentShape):
    """Numbers of latent attention, and of the delta nets, whose keys are as wide as their values."""

    taps: int = 0
    delta_heads: int = 0  # 0: as many as attention has
    delta_dim: int = 0
    attention: frozenset[int] = frozenset()  # the layers that are attention


FIELDS = (
    Field("own.taps", "ssm.conv_kernel", "u32", "linear_conv_kernel_dim", 2, MOST_TAPS),
    Field("own.delta_heads", "", "u32", "linear_num_heads", 1, MOST_HEADS),
    Field("own.delta_dim", "kda.head_dim", "u32", "linear_head_dim", 1, MOST_HEAD_DIM),
)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The words of `KimiLinearConfig` for those that it takes too; the kinds of layers, counted from 1, as one list."""
    found = latent.reworded(values) | {other: values[name] for name, other in ALIASES.items() if name in values}
    linear, layers = values.get(LINEAR), values.get("num_hidden_layers")
    if not isinstance(linear, Mapping):
        return with_leading(found)
    found |= {other: linear[name] for name, other in OF_LINEAR.items() if name in linear}
    if values.get("layer_types") is None and all(isinstance(linear.get(name), list) for name in LISTS):
        kinds = {number: kind for name, kind in LISTS.items() for number in linear[name] if type(number) is int}
        known = layers if type(layers) is int and layers <= len(kinds) else len(kinds)
        found["layer_types"] = [kinds.get(number + 1) for number in range(known)]
    return with_leading(found)


def regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata in the words of the heads, and which layers are attention."""
    return latent.regrouped(by_key_heads(values))


def said(config: ModelConfig, gguf: str = "kimi-linear") -> dict[str, tuple[str, Any]]:
    """More of the metadata of an architecture's GGUF files: one head of keys, that of what is cached, in layers of
    attention."""
    found = key_heads(config, gguf, config.own.attention)
    counts = {key: (kind, [int(count > 0) for count in each]) for key, (kind, each) in found.items()}
    return {**latent.said(config, gguf, absorbed=True), **counts}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    own = config.own
    linear: dict[str, Any] = {"head_dim": own.delta_dim, "num_heads": own.delta_heads}
    linear["short_conv_kernel_size"] = own.taps
    for name, kind in LISTS.items():
        of_kind = kind == KINDS[1]
        linear[name] = [layer + 1 for layer in range(config.layers) if (layer in own.attention) is of_kind]
    kinds = [KINDS[layer in own.attention] for layer in range(config.layers)]
    return {**latent.words(config), LINEAR: linear, "layer_types": kinds, "mla_use_nope": True}


def unsaid(config: ModelConfig) -> str:
    """Why a GGUF file cannot say what a configuration means."""
    if config.own.delta_heads != config.heads:
        return f"its delta nets have {config.own.delta_heads} heads, its attention {config.heads}"
    return "its queries come out of a latent" if config.own.q_rank else RENORMALIZED(config)


RENORMALIZED = meaning(renormalize=True, dense=True)
