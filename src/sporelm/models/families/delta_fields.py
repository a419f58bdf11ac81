"""What the families of gated delta nets share: what files call their numbers and weights, and which layer has which."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Field
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.forms import grouped
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, NORM_BETWEEN, Kind, Names, Stored, Table
from sporelm.errors import ModelFileError
from sporelm.models.blocks import Attention, DeltaHeads, DeltaNet
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, ModelConfig
from sporelm.models.families.gemma import less_one
from sporelm.models.families.layer_kinds import attention_layers

MOST_TAPS = 64
KINDS = ("linear_attention", "full_attention")
RECURRENT = "attention.recurrent_layers"

DELTA_FIELDS = (
    Field("own.taps", "ssm.conv_kernel", "u32", "linear_conv_kernel_dim", 2, MOST_TAPS),
    Field("own.key_dim", "ssm.state_size", "u32", "linear_key_head_dim", 1, MOST_HEAD_DIM),
    Field("own.key_heads", "ssm.group_count", "u32", "linear_num_key_heads", 1, MOST_HEADS),
    Field("own.heads", "ssm.time_step_rank", "u32", "linear_num_value_heads", 1, MOST_HEADS),
    Field("own.inner", "ssm.inner_size", "u32", "", 1, MOST_WIDTH),
    Field("own.value_dim", "", "u32", "linear_value_head_dim", 1, MOST_HEAD_DIM),
    Field("own.interval", "full_attention_interval", "u32", "full_attention_interval", 1, MOST_LAYERS, 4),
)
DEFAULTS: dict[str, Any] = {"head_dim": 256, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768}
DEFAULTS |= {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
DEFAULTS |= {"linear_num_key_heads": 16, "linear_num_value_heads": 32}
USUAL = {"hidden_act": ("silu",), "attention_bias": (False,), "output_gate_type": ("swish", "silu")}

# Norms are stored less one, but for that of the delta net.
NORMS = less_one(
    *(names for names in COMMON if names.ours in ("output_norm.weight", "layers.{}.attn_norm.weight")),
    NORM_BETWEEN,
    *HEAD_NORMS,
)


def gated_queries(layer: str = "model.layers.{}.") -> Table:
    """Names of attention's queries and of what opens and shuts it: both of each head lie together."""
    halves = [grouped((half,), lambda config: config.heads, *[lambda config: config.head_dim] * 2) for half in (0, 1)]
    return tuple(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            Stored("blk.{}.attn_q.weight", rows=rows),
            Stored(f"{layer}self_attn.q_proj.weight", rows=rows),
        )
        for part, rows in zip(("q", "gate"), halves, strict=True)
    )


def taps_apart(net: str) -> Table:
    """Names of the taps of delta nets whose queries, keys and values are convolved apart."""
    held: dict[str, Any] = {"transposed": True, "between": True}
    return tuple(
        Names(
            f"layers.{{}}.delta_{part}_conv.weight",
            Stored(f"blk.{{}}.ssm_conv1d_{part}.weight", **held),
            Stored(f"{net}{part}_conv1d.weight", **held),
        )
        for part in "qkv"
    )


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers are attention, and what follows from the numbers of heads."""
    own: DeltaHeads = config.own
    inner = own.inner or own.heads * own.value_dim
    if own.heads % own.key_heads or inner % own.heads:
        what = f"{own.heads} heads of {inner} values, {own.key_heads} heads of keys"
        keys = values.among("linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim")
        raise ModelFileError(f"{values.where}: {what}: these do not divide evenly{keys}")
    told = values.values.get("layer_types" if kind == HF else RECURRENT)
    attention = frozenset(range(own.interval - 1, config.layers, own.interval))
    attention = attention if told is None else attention_layers(values, told, config.layers, flags=kind != HF)
    own = replace(own, inner=inner, value_dim=inner // own.heads, attention=attention)
    return replace(config, own=own)


def is_regular(config: ModelConfig) -> bool:
    """Whether attention stands at the interval that the configuration says."""
    own: DeltaHeads = config.own
    return own.attention == frozenset(range(own.interval - 1, config.layers, own.interval))


def said(config: ModelConfig, gguf: str) -> dict[str, tuple[str, Any]]:
    """More of the metadata of GGUF files of an architecture."""
    recurrent = [layer not in config.own.attention for layer in range(config.layers)]
    return {} if is_regular(config) else {f"{gguf}.{RECURRENT}": ("[bool]", recurrent)}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    kinds = [KINDS[layer in config.own.attention] for layer in range(config.layers)]
    return {"layer_types": kinds, "partial_rotary_factor": config.rotary / config.head_dim}


def mixer(config: ModelConfig, index: int) -> Attention | DeltaNet:
    """A layer's attention, or its gated delta net."""
    if index in config.own.attention:
        return Attention(f"layers.{index}", config, norm="heads", gated=True)
    return DeltaNet(f"layers.{index}", config)
