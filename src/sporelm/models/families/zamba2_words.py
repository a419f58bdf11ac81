"""Zamba2's config.json and GGUF metadata, where the tables do not say it."""

from typing import Any

from sporelm.models.config import ModelConfig
from sporelm.models.families.layer_kinds import ATTENTION, OTHER, key_heads

KINDS, ROTATES, HYBRID = "layers_block_type", "rope.scaling.finetuned", "hybrid"


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """With the widths of heads, and kinds of layers in other families' words."""
    width, growth, heads, count = (
        values.get(key) for key in ("hidden_size", "mamba_expand", "n_mamba_heads", "num_attention_heads")
    )
    known = all(type(each) is int and each > 0 for each in (width, growth, heads, count))
    sizes = {"mamba_headdim": width * growth // heads, "attention_head_dim": 2 * width // count} if known else {}  # type: ignore
    told = values.get(KINDS)
    words = {HYBRID: ATTENTION[0], "mamba": OTHER[0]}
    kinds = (
        [words.get(kind, kind) if isinstance(kind, str) else kind for kind in told] if isinstance(told, list) else told
    )
    return {**values, **sizes, KINDS: kinds}


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    found = key_heads(config, "zamba2", config.own.attention)
    found["zamba2.rope.dimension_count"] = ("u32", config.rotary or config.head_dim)
    return {**found, f"zamba2.{ROTATES}": ("bool", config.rotary > 0)}


def words(config: ModelConfig) -> dict[str, Any]:
    kinds = [HYBRID if layer in config.own.attention else OTHER[0] for layer in range(config.layers)]
    return {KINDS: kinds, "use_mem_rope": config.rotary > 0}
