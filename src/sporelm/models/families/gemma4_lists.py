"""How GGUF files describe Gemma 4, with a list where layers differ; and what must hold of either kind of file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError
from sporelm.models.config import MOST_HEADS, ModelConfig, Scales
from sporelm.models.families.gemma4_words import of_kind, with_hf

PATTERN = "attention.sliding_window_pattern"
HEADS, WIDTHS, BORROWING = "attention.head_count_kv", "feed_forward_length", "attention.shared_kv_layers"
LOCAL_HEADS, WIDE = "local_heads", "wide"  # ours, in place of lists
CAP = "final_logit_softcapping"
LLAMA_CPPS_CAP = 30.0  # of a file that names none


def of_gguf(values: dict[str, Any]) -> dict[str, Any]:
    """Metadata with a number for each kind of layer where it has lists; other lists are refused as they stand."""
    heads, widths, borrowing, layers = (values.get(key) for key in (HEADS, WIDTHS, BORROWING, "block_count"))
    pattern = [bool(each) for each in _list(values.get(PATTERN), layers)]
    found = {**values, LOCAL_HEADS: heads, CAP: values.get(CAP, LLAMA_CPPS_CAP)}
    if heads := _list(heads, len(pattern)):
        kinds = [{int(each) for each, own in zip(heads, pattern, strict=True) if own is kind} for kind in (True, False)]
        if all(len(counts) == 1 for counts in kinds):
            found |= {LOCAL_HEADS: min(kinds[0]), HEADS: min(kinds[1])}
    if widths := _list(widths, len(pattern)):
        first, own = int(widths[0]), len(pattern) - (borrowing if isinstance(borrowing, int) else 0)
        if [int(each) for each in widths] == [first if index < own else 2 * first for index in range(len(pattern))]:
            found |= {WIDTHS: first, WIDE: True}
    return found


def _list(value: Any, count: Any) -> list[int]:
    """A list of so many whole numbers; empty for anything else."""
    found = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(found, list) or not isinstance(count, int) or len(found) != count:
        return []
    return found if all(isinstance(each, int) for each in found) else []


def of_lists(config: ModelConfig, values: Fields) -> ModelConfig:
    """The configuration with what `of_gguf` made of the lists."""
    if not (pattern := _list(values.values.get(PATTERN), config.layers)):
        what = f"{PATTERN} must say of each of the {config.layers} layers whether it has a window"
        raise ModelFileError(f"{values.where}: {what}")
    own = replace(config.own, wide=values.flag(WIDE, False), local_heads=values.integer(LOCAL_HEADS, 1, MOST_HEADS))
    return replace(config, own=own, full_layers=frozenset(index for index, local in enumerate(pattern) if not local))


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The configuration of a file of a kind, with its scales. Raises ModelFileError for layers that cannot be."""
    config = with_hf(config, values) if kind == HF else of_lists(config, values)
    own, first = config.own, config.layers - config.own.borrowing
    if config.heads % own.local_heads or own.local_dim % 2:
        what = f"{config.heads} query heads, {own.local_heads} key heads of {own.local_dim}"
        what = f"{what} in layers with a window: query heads must be a multiple of key heads, their width even"
        keys = values.among("num_attention_heads", "num_key_value_heads", "head_dim")
        raise ModelFileError(f"{values.where}: {what}{keys}")
    lent = {layer in config.full_layers for layer in range(first)}
    if not {layer in config.full_layers for layer in range(max(first, 0), config.layers)} <= lent:
        what = "layers that share keys and values have no earlier layer of their type to share with"
        raise ModelFileError(f"{values.where}: {what}{values.among('num_kv_shared_layers', 'layer_types')}")
    scales = Scales(embedding=config.width**0.5, attention=1.0)
    return replace(config, scales=scales, logit_cap=config.logit_cap or None)


def noticed(config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Values are keys where a layer without a window has none of its own."""
    first = min(config.full_layers, default=0)
    return replace(config, own=replace(config.own, tied=f"blk.{first}.attn_v.weight" not in shapes))


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """What GGUF files say of each layer."""
    shapes = [of_kind(config, layer) for layer in range(config.layers)]
    found: dict[str, tuple[str, Any]] = {
        PATTERN: ("[bool]", [config.window_of(layer) is not None for layer in range(config.layers)]),
        HEADS: ("[u32]", [shape.kv_heads for shape in shapes]),
    }
    if config.own.wide:
        found[WIDTHS] = "[u32]", [shape.ffn for shape in shapes]
    if config.logit_cap is None:
        found[CAP] = "f32", 0.0
    return {f"gemma4.{key}": value for key, value in found.items()}
