"""Decoders whose layers differ in their heads of queries and of keys, and in the width of their feed-forward blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.errors import ModelFileError
from sporelm.models.config import MOST_HEADS, MOST_WIDTH, ModelConfig

# GGUF metadata that is a list where layers differ; by our names, under which the lists are left.
LISTS = {
    "layer_heads": "attention.head_count",
    "layer_kv_heads": "attention.head_count_kv",
    "layer_ffn": "feed_forward_length",
}
WORDS = {
    "layer_heads": "num_attention_heads",
    "layer_kv_heads": "num_key_value_heads",
    "layer_ffn": "intermediate_size",
}
HIGHEST = (MOST_HEADS, MOST_HEADS, MOST_WIDTH)


@dataclass(frozen=True)
class LayerShapes:
    """Of each layer, 0 where it has none."""

    heads: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    ffn: tuple[int, ...] = ()

    def of_layer(self, config: ModelConfig, layer: int) -> ModelConfig:
        """The configuration of one layer."""
        return replace(config, heads=self.heads[layer], kv_heads=self.kv_heads[layer], ffn=self.ffn[layer])


def one_each(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata with a number where it has a list: that of the layer with most heads."""
    return _with_one(values, {ours: whole_numbers(values.get(key)) for ours, key in LISTS.items()}, LISTS)


def with_lists(values: dict[str, Any], lists: Mapping[str, list[int]]) -> dict[str, Any]:
    """The same of a config.json, whose lists are these; an empty one where it has a number."""
    return _with_one(values, lists, WORDS)


def _with_one(values: dict[str, Any], lists: Mapping[str, list[int]], keys: Mapping[str, str]) -> dict[str, Any]:
    """The values, the lists under our names, and the number that the tables read under those of files."""
    heads, kv_heads, ffn = (lists.get(ours) or [0] for ours in LISTS)
    pairs = [(heads[layer] if layer < len(heads) else 0, count) for layer, count in enumerate(kv_heads) if count]
    most = max(pairs, default=(max(heads), 1))
    numbers = dict(zip(LISTS, (*most, max(ffn)), strict=True))
    told = {keys[ours]: numbers[ours] or 1 for ours, each in lists.items() if each}
    return {**values, **told, **dict.fromkeys(LISTS), **lists}


def whole_numbers(value: Any) -> list[int]:
    """A list of whole numbers; empty for anything else."""
    found = value.tolist() if hasattr(value, "tolist") else value
    alike = isinstance(found, list) and all(type(each) is int for each in found)
    return found if alike else []


def shaped(config: ModelConfig, values: Fields, least: int = 0) -> ModelConfig:
    """The configuration with the shapes of its layers, whose numbers are `least` or more. Raises ModelFileError for
    such as cannot be."""
    usual, found = (config.heads, config.kv_heads, config.ffn), []
    for key, one, highest in zip(LISTS, usual, HIGHEST, strict=True):
        told = whole_numbers(values.values.get(key)) or [one] * config.layers
        if len(told) != config.layers or not all(least <= each <= highest for each in told):
            what = f"{LISTS[key]} is {shown(told)}"
            raise ModelFileError(f"{values.where}: {what}; it must be one of {least} to {highest} for each layer")
        found.append(tuple(told))
    shapes = LayerShapes(*found)
    for layer, (heads, kv_heads) in enumerate(zip(shapes.heads, shapes.kv_heads, strict=True)):
        if heads % (kv_heads or 1):
            what = f"{heads} query heads in layer {layer} are no whole groups of {kv_heads} key heads"
            raise ModelFileError(f"{values.where}: {what}")
    return replace(config, own=shapes)


def said(config: ModelConfig, gguf: str) -> dict[str, tuple[str, Any]]:
    """The same to be written."""
    shapes: LayerShapes = config.own
    lists = (shapes.heads, shapes.kv_heads, shapes.ffn)
    return {f"{gguf}.{key}": ("[u32]", list(each)) for key, each in zip(LISTS.values(), lists, strict=True)}
