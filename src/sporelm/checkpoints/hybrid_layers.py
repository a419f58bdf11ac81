"""The layers with attention, and those with rotary positions, in files of hybrid models."""

from collections.abc import Set
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig

GGUF_KV_HEADS: Final = "attention.head_count_kv"
GGUF_ROPE_PATTERN: Final = "attention.rope_pattern"  # list: whether each layer has rotary positions
LAYER_TYPE_KEYS: Final = ("layer_types", "layers_block_type")  # of config.json
ATTENTION_TYPES: Final = ("full_attention", "attention")
RECURRENT_TYPES: Final = ("linear_attention", "mamba", "conv")


def read_attention_layers(
    values: ConfigValues, layer_types: Any, layers: int, *, are_flags: bool = False
) -> frozenset[int]:
    """Return the layers that have attention.

    values        of the file, for messages
    layer_types   a list of names, one for each layer
    are_flags     the list has booleans in place of names: whether each layer is recurrent

    Raises UnsupportedModel for other names, ModelFileError for a list that is too short.
    """
    kinds = layer_types.tolist() if hasattr(layer_types, "tolist") else layer_types
    attention: tuple[Any, ...] = (False,) if are_flags else ATTENTION_TYPES
    known = attention + ((True,) if are_flags else RECURRENT_TYPES)
    if not isinstance(kinds, list | tuple) or any(kind not in known for kind in kinds):
        what = f"layer types must be among {', '.join(map(str, known))} (got {format_value(kinds)})"
        raise UnsupportedModel(f"{values.where}: {what}{values.list_keys(*LAYER_TYPE_KEYS)}")
    if len(kinds) < layers:
        what = f"there are {len(kinds)} layer types for {layers} layers"
        raise ModelFileError(f"{values.where}: {what}{values.list_keys('num_hidden_layers', *LAYER_TYPE_KEYS)}")
    return frozenset(layer for layer in range(layers) if kinds[layer] in attention)


def with_types_by_kv_heads(values: ConfigValues) -> ConfigValues:
    """Return GGUF metadata that lists 0 KV heads for layers without attention with `layer_types`, and with the KV heads
    of the other layers as one number."""
    value = values.get(GGUF_KV_HEADS)
    counts = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
        return values
    kinds = [(ATTENTION_TYPES if count else RECURRENT_TYPES)[0] for count in counts]
    return values.with_changes({GGUF_KV_HEADS: max(counts, default=0) or 1, "layer_types": kinds})


def kv_heads_metadata(config: ModelConfig, name: str, attention_layers: Set[int]) -> dict[str, tuple[str, Any]]:
    """Return GGUF metadata of the architecture `name` that lists 0 KV heads for layers without attention."""
    counts = [config.kv_heads if layer in attention_layers else 0 for layer in range(config.layers)]
    return {f"{name}.{GGUF_KV_HEADS}": ("[u32]", counts)}


def read_rope_pattern(values: ConfigValues, key: str, layers: int) -> list[Any]:
    """Return an entry for each layer: 0 or false for layers without rotary positions. Without the key, all layers have
    them.

    Raises UnsupportedModel for anything but a list of one entry for each layer.
    """
    value: Any = values.get(key)
    is_list = hasattr(value, "__len__") and type(value) is not str
    pattern = [1] * layers if value is None else list(value) if is_list else []
    if len(pattern) != layers or any(isinstance(each, str | list | dict) for each in pattern):
        what = f"{key} is {format_value(value)}; it must be a list of 0 or 1 for the {layers} layers"
        raise UnsupportedModel(f"{values.where}: {what}")
    return pattern
