"""Which layers of a hybrid are attention, and which have experts."""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig

KV, ROUTER = "attention.head_count_kv", "blk.{}.ffn_gate_inp.weight"
ROTATED = "attention.rope_pattern"  # in GGUF metadata: of each layer, whether it has rotary positions

KINDS_OF_HF = ("layer_types", "layers_block_type")  # of config.json
ATTENTION, OTHER = ("full_attention", "attention"), ("linear_attention", "mamba", "conv")


def attention_layers(values: Fields, told: Any, layers: int, *, flags: bool = False) -> frozenset[int]:
    """The layers that a file says are attention, by a list of their kinds' names; with `flags`, of whether each is
    recurrent.

    Raises UnsupportedModel for other kinds, ModelFileError for fewer than there are layers.
    """
    kinds = told.tolist() if hasattr(told, "tolist") else told
    attention, other = ((False,), (True,)) if flags else (ATTENTION, OTHER)
    if not isinstance(kinds, list | tuple) or any(kind not in attention + other for kind in kinds):
        names = ", ".join(str(kind) for kind in attention + other)
        what = f"layer types must be among {names} (got {shown(kinds)})"
        raise UnsupportedModel(f"{values.where}: {what}{values.among(*KINDS_OF_HF)}")
    if len(kinds) < layers:
        what = f"{len(kinds)} layer types are given for {layers} layers"
        raise ModelFileError(f"{values.where}: {what}{values.among('num_hidden_layers', *KINDS_OF_HF)}")
    return frozenset(layer for layer in range(layers) if kinds[layer] in attention)


def by_key_heads(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata in which layers without attention have no heads of keys: `layer_types`, and how many the others
    have."""
    counts: Any = values.get(KV)
    heads = counts.tolist() if hasattr(counts, "tolist") else counts
    if not isinstance(heads, list) or not all(isinstance(count, int) for count in heads):
        return values
    return {**values, KV: max(heads, default=0) or 1, "layer_types": [(ATTENTION if n else OTHER)[0] for n in heads]}


def key_heads(config: ModelConfig, gguf: str, attention: Set[int]) -> dict[str, tuple[str, Any]]:
    """The same to be written, for an architecture."""
    counts = [config.kv_heads if layer in attention else 0 for layer in range(config.layers)]
    return {f"{gguf}.{KV}": ("[u32]", counts)}


def rotation_marks(values: Fields, key: str, layers: int) -> list[Any]:
    """What a list says of each layer, nought for one that is not rotated; where there is none, all are. Raises
    UnsupportedModel for anything else."""
    told = values.values.get(key)
    marks = [1] * layers if told is None else list(told) if hasattr(told, "__len__") and type(told) is not str else []
    if len(marks) != layers or any(isinstance(each, str | list | dict) for each in marks):
        what = f"{key} is {shown(told)}; it must say of each of {layers} layers if it is rotated"
        raise UnsupportedModel(f"{values.where}: {what}")
    return marks


def with_routers(
    config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    """`Family.noticed`: layers of a GGUF file that have a router have experts, whatever else it says; no others."""
    dense = frozenset(layer for layer in range(config.layers) if ROUTER.replace("{}", str(layer)) not in shapes)
    if config.experts is None or len(dense) == config.layers:
        return replace(config, experts=None)
    leading = len(dense) if dense == {*range(len(dense))} else 0
    return replace(config, experts=replace(config.experts, dense=frozenset() if leading else dense, leading=leading))
