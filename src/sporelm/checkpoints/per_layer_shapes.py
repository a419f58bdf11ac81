"""Lists of the heads and of the feed-forward width of each layer in GGUF metadata and config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.errors import ModelFileError
from sporelm.models.config import MAX_HEADS, MAX_WIDTH
from sporelm.models.layer_shapes import LayerShapesConfig

# Attributes, which are also our keys for the lists -> keys of GGUF metadata and of config.json.
GGUF_LIST_KEYS: Final = {
    "layer_heads": "attention.head_count",
    "layer_kv_heads": "attention.head_count_kv",
    "layer_ffn": "feed_forward_length",
}
HF_NUMBER_KEYS: Final = {
    "layer_heads": "num_attention_heads",
    "layer_kv_heads": "num_key_value_heads",
    "layer_ffn": "intermediate_size",
}
MAX_NUMBERS: Final = {"layer_heads": MAX_HEADS, "layer_kv_heads": MAX_HEADS, "layer_ffn": MAX_WIDTH}
Config = TypeVar("Config", bound=LayerShapesConfig)


def whole_numbers(value: Any) -> list[int]:
    """Return a list of integers; an empty one for anything else."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return items if isinstance(items, list) and all(type(item) is int for item in items) else []


def with_gguf_lists(values: ConfigValues) -> ConfigValues:
    """Return GGUF metadata with its lists under the attributes' names. Their keys get one number: that of the layer
    with most heads."""
    lists = {attribute: whole_numbers(values.get(key)) for attribute, key in GGUF_LIST_KEYS.items()}
    return _with_one_number(values, lists, GGUF_LIST_KEYS)


def with_hf_lists(values: ConfigValues, lists: Mapping[str, list[int]]) -> ConfigValues:
    """Return a config.json with these lists, by attribute, and one number under each of their keys."""
    return _with_one_number(values, lists, HF_NUMBER_KEYS)


def _with_one_number(values: ConfigValues, lists: Mapping[str, list[int]], keys: Mapping[str, str]) -> ConfigValues:
    heads, kv_heads, ffn = (lists.get(attribute) or [0] for attribute in GGUF_LIST_KEYS)
    pairs = [(heads[layer] if layer < len(heads) else 0, count) for layer, count in enumerate(kv_heads) if count]
    largest = max(pairs, default=(max(heads), 1))
    numbers = dict(zip(GGUF_LIST_KEYS, (*largest, max(ffn)), strict=True))
    changes: dict[str, Any] = {keys[attribute]: numbers[attribute] or 1 for attribute, each in lists.items() if each}
    return values.with_changes({**changes, **dict.fromkeys(GGUF_LIST_KEYS), **lists})


def with_layer_shapes(config: Config, values: ConfigValues, low: int = 0) -> Config:
    """Return the configuration with the lists of `values`; without a list, all layers have the same number.

    low   the lowest number that a layer may have

    Raises ModelFileError for lists that do not fit the layers or each other.
    """
    lists: dict[str, tuple[int, ...]] = {}
    for attribute, high in MAX_NUMBERS.items():
        usual: int = getattr(config, attribute.removeprefix("layer_"))
        numbers = whole_numbers(values.get(attribute)) or [usual] * config.layers
        if len(numbers) != config.layers or not all(low <= number <= high for number in numbers):
            what = f"{GGUF_LIST_KEYS[attribute]} is {format_value(numbers)}"
            raise ModelFileError(
                f"{values.where}: {what}; it must be a list of integers from {low} to {high}, one for each layer"
            )
        lists[attribute] = tuple(numbers)
    config = replace(
        config,
        layer_heads=lists["layer_heads"],
        layer_kv_heads=lists["layer_kv_heads"],
        layer_ffn=lists["layer_ffn"],
    )
    for layer, (heads, kv_heads) in enumerate(zip(config.layer_heads, config.layer_kv_heads, strict=True)):
        if heads % (kv_heads or 1):
            what = f"{heads} query heads in layer {layer} are not a multiple of {kv_heads} KV heads"
            raise ModelFileError(f"{values.where}: {what}")
    return config


def layer_shapes_metadata(config: LayerShapesConfig, name: str) -> dict[str, MetadataEntry]:
    """Return the lists for the GGUF metadata of an architecture."""
    return {f"{name}.{key}": ("[u32]", list(getattr(config, attribute))) for attribute, key in GGUF_LIST_KEYS.items()}
