"""What files call the numbers and the weights of multi-head latent attention, which several families share.

GGUF keys and tensors: llama.cpp's llama-arch.cpp, deepseek2.cpp and minicpm3.cpp. Hugging Face: the configuration
classes of transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.family import OPTIONAL, Field
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_FACTOR, PARTIAL, magnitude
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Stored, Table
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MOST_HEAD_DIM, MOST_WIDTH, ModelConfig
from sporelm.models.rope_scaling import Yarn

BLOCK = "model.layers.{}.self_attn."
LOG, HEADS = "rope.scaling.yarn_log_multiplier", "attention.head_count"


@dataclass(frozen=True)
class LatentShape:
    """The numbers of latent attention; `ModelConfig.head_dim` is that of a query, its rotated part included."""

    rank: int  # numbers of the latent, of which keys and values are made
    rotary: int  # numbers of a head that are rotated, and of the key that all heads share
    value: int  # of a head
    q_rank: int = 0  # numbers of what queries are made of; 0: they are made of the rows themselves
    log_multiplier: float | None = None  # scores grow by the square of 1 + this * log(factor) where YaRN scales

    # As blocks call them.
    kv_lora_rank = property(lambda self: self.rank)
    qk_rope_head_dim = property(lambda self: self.rotary)
    v_head_dim = property(lambda self: self.value)
    q_lora_rank = property(lambda self: self.q_rank)


LATENT_FIELDS = (
    Field("own.rank", "attention.kv_lora_rank", "u32", "kv_lora_rank", 1, MOST_WIDTH),
    Field("own.q_rank", "attention.q_lora_rank", "u32", "q_lora_rank", 0, MOST_WIDTH, 0),
    Field("own.rotary", "rope.dimension_count", "u32", "qk_rope_head_dim", 2, MOST_HEAD_DIM),
    Field("own.value", "attention.value_length_mla", "u32", "v_head_dim", 1, MOST_HEAD_DIM),
    Field("own.log_multiplier", LOG, "f32", "", 0.0, MOST_FACTOR, OPTIONAL),
)


def rotated_first(config: ModelConfig) -> NDArray[np.int64]:
    """The rows of queries, whose heads have their rotated numbers last in files and first here."""
    head = np.roll(np.arange(config.head_dim), config.own.rotary)
    return (np.arange(config.heads)[:, None] * config.head_dim + head).reshape(-1)


def _part(of_values: bool) -> Callable[[ModelConfig], NDArray[np.int64]]:
    """Of a tensor that has, for each head, what makes its keys and what makes its values: the rows of one."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        keys, values = config.head_dim - config.own.rotary, config.own.value
        own = np.arange(keys, keys + values) if of_values else np.arange(keys)
        return (np.arange(config.heads)[:, None] * (keys + values) + own).reshape(-1)

    return rows


def _unsplit(name: str) -> tuple[Stored, Stored]:
    """What makes keys, turned about for queries, and what makes values, in one tensor."""
    return Stored(name, _part(False), transposed=True, heads=True), Stored(name, _part(True), heads=True)


_PARTS = tuple(zip("kv", _unsplit("blk.{}.attn_kv_b.weight"), _unsplit(f"{BLOCK}kv_b_proj.weight"), strict=True))
LATENT_NAMES: Table = (
    *(
        Names(
            f"layers.{{}}.attn_{ours}.weight",
            Stored(f"blk.{{}}.attn_{ours}.weight", rotated_first),
            Stored(f"{BLOCK}{ours}_proj.weight", rotated_first),
        )
        for ours in ("q", "q_b")
    ),
    *(
        Names(f"layers.{{}}.attn_{ours}.weight", f"blk.{{}}.attn_{gguf}.weight", f"{BLOCK}{hf}.weight")
        for ours, gguf, hf in (
            ("q_a", "q_a", "q_a_proj"),
            ("q_a_norm", "q_a_norm", "q_a_layernorm"),
            ("kv_a", "kv_a_mqa", "kv_a_proj_with_mqa"),
            ("kv_a_norm", "kv_a_norm", "kv_a_layernorm"),
        )
    ),
    *(Names(f"layers.{{}}.attn_{part}_b.weight", f"blk.{{}}.attn_{part}_b.weight", hf) for part, _, hf in _PARTS),
)
# As GGUF files of old have them, and those of MiniCPM3.
UNSPLIT: Table = tuple(Names(f"layers.{{}}.attn_{part}_b.weight", gguf, hf) for part, gguf, hf in _PARTS)


def regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata in the words of the heads: newer files have the widths of what is cached, and beside them those of
    heads; in older ones, and those of MiniCPM3, the latter alone."""
    found = dict(values)
    for kind in ("key", "value"):
        plain = found.pop(f"attention.{kind}_length", None)
        found.setdefault(f"attention.{kind}_length_mla", plain)
    key, width, heads = (found.get(f"{name}") for name in ("attention.key_length_mla", "embedding_length", HEADS))
    if found["attention.value_length_mla"] is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        found["attention.value_length_mla"] = width // heads
    if LOG in found:  # what grows are the scores, not cosines and sines
        found.setdefault("rope.scaling.yarn_attn_factor", 1.0)
    return {**found, "attention.key_length": key, "attention.head_count_kv": heads}


def said(config: ModelConfig, architecture: str, *, absorbed: bool) -> dict[str, tuple[str, Any]]:
    """More of GGUF metadata: the widths of heads, or, `absorbed`, of what is cached, with those of heads beside."""
    own, found = config.own, {"attention.key_length": config.head_dim, "attention.value_length": config.own.value}
    if absorbed:
        found = {"attention.key_length_mla": config.head_dim, "attention.head_count_kv": 1}
        found |= {"attention.key_length": own.rank + own.rotary, "attention.value_length": own.rank}
    entries: dict[str, tuple[str, Any]] = {key: ("u32", value) for key, value in found.items()}
    if own.log_multiplier is not None:
        entries["rope.scaling.attn_factor"] = "f32", 1.0
    return {f"{architecture}.{key}": entry for key, entry in entries.items()}


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json, in which the rotated part of a head is what angles are made for."""
    return {**values, "head_dim": values.get("qk_rope_head_dim")}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The width of heads and the scale of their scores. Raises ModelFileError for parts that do not fit."""
    own, factor = config.own, getattr(config.rope_scaling, "factor", 1.0)
    head_dim = config.head_dim
    if kind == HF:
        head_dim = values.integer("qk_nope_head_dim", 1, MOST_HEAD_DIM) + own.rotary
        weight = _mscale(values)
        own = replace(own, log_multiplier=0.1 * weight if weight else None)
    if config.rotary not in (0, own.rotary) or config.rotary % 2 or head_dim <= own.rotary:
        what = f"{config.rotary} of {own.rotary} numbers of a head of {head_dim} are rotated"
        keys = f" ({', '.join(('qk_rope_head_dim', 'qk_nope_head_dim', PARTIAL))})" if kind == HF else ""
        raise ModelFileError(f"{values.where}: {what}; some pairs must be, and some not{keys}")
    growth = magnitude(factor, 10 * own.log_multiplier) if own.log_multiplier else 1.0
    scales = replace(config.scales, attention=head_dim**-0.5 * growth**2)
    return replace(config, head_dim=head_dim, kv_heads=config.heads, scales=scales, own=own)


def _mscale(values: Fields) -> float:
    """`mscale_all_dim` of config.json; 0 where there is none. Raises UnsupportedModel where it is of no YaRN."""
    rope: Any = values.values.get("rope_parameters") or values.values.get("rope_scaling") or {}
    if not isinstance(rope, Mapping) or not rope.get("mscale_all_dim"):
        return 0.0
    if (kind := rope.get("rope_type", rope.get("type"))) != "yarn":
        raise UnsupportedModel(f"{values.where}: mscale_all_dim is supported for yarn, not for {kind!r:.40}")
    return Fields(rope, values.where).number("mscale_all_dim", 0.0, MOST_FACTOR)


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    own, scaling = config.own, config.rope_scaling
    found = {"qk_nope_head_dim": config.head_dim - own.rotary, "head_dim": own.rotary}
    if not own.q_rank:
        found["q_lora_rank"] = None
    if isinstance(scaling, Yarn) and own.log_multiplier is not None:
        names = ("factor", "beta_fast", "beta_slow")
        weight = round(10 * own.log_multiplier, 6)
        found["rope_scaling"] = {"rope_type": "yarn", **{name: round(getattr(scaling, name), 6) for name in names}}
        found["rope_scaling"] |= {"mscale": weight, "mscale_all_dim": weight}
        found["rope_scaling"]["original_max_position_embeddings"] = scaling.original
    return found


def turned(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The configuration with heads rotated by adjacent pairs, or by half where a config.json says so."""
    half = kind == HF and not values.flag("rope_interleave", True)
    return replace(config, rope_style="half" if half else "adjacent")


def unsaid_of_turned(config: ModelConfig) -> str:
    """`unsaid`, and heads rotated by half."""
    return "heads are rotated by half" if config.rope_style == "half" else unsaid(config)


def unsaid(config: ModelConfig) -> str:
    """Why a GGUF file cannot say what a configuration means; "" where it can."""
    scaling = config.rope_scaling
    if isinstance(scaling, Yarn) and (scaling.attention != 1 or config.own.log_multiplier is None):
        return "YaRN enlarges its cosines and sines: its mscale is not its mscale_all_dim"
    return ""
