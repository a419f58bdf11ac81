"""Rows of tensors that hold several weights, for families that are not converted to schemas yet."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.config import ModelConfig

Rows = Callable[[ModelConfig], NDArray[np.int64]]


def stacked(part: int, *counts: Callable[[ModelConfig], int]) -> Rows:
    """The rows of part number `part` of a tensor of parts one after the other, of so many rows each."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        start = sum(count(config) for count in counts[:part])
        return np.arange(start, start + counts[part](config))

    return rows


def query_rows(config: ModelConfig) -> int:
    return config.heads * config.head_dim


def key_rows(config: ModelConfig) -> int:
    return config.kv_heads * config.head_dim


def ffn_rows(config: ModelConfig) -> int:
    return config.ffn


def expert_rows(config: ModelConfig) -> int:
    """Of the gate, or of the up part, of each expert."""
    assert config.experts is not None
    return config.experts.ffn or config.ffn


def shared_rows(config: ModelConfig) -> int:
    """Of those of the block that every token goes through."""
    assert config.experts is not None
    return config.experts.shared_width


def every_other(first: int, count: Callable[[ModelConfig], int]) -> Rows:
    """`count` rows of a tensor where two parts take turns, from the one of number `first` on."""
    return lambda config: np.arange(count(config)) * 2 + first


BOTH = ("weight", "bias")
QKV = {part: stacked(number, query_rows, key_rows, key_rows) for number, part in enumerate("qkv")}


def grouped(parts: Sequence[int], groups: Callable[[ModelConfig], int], *counts: Callable[[ModelConfig], int]) -> Rows:
    """The rows of these parts, one after the other, of a tensor that has for each of its groups all parts, of so many
    rows each."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        ends = np.cumsum([0, *(count(config) for count in counts)])
        starts = np.arange(groups(config))[:, None] * ends[-1]
        return np.concatenate([(starts + np.arange(ends[part], ends[part + 1])).reshape(-1) for part in parts])

    return rows


def by_group(part: str) -> Rows:
    """The rows of "q", "k" or "v" of a tensor that has, for each key head, its query heads, its key and its value."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        group, dim = config.heads // config.kv_heads, config.head_dim
        first, count = {"q": (0, group), "k": (group, 1), "v": (group + 1, 1)}[part]
        starts = np.arange(config.kv_heads)[:, None] * ((group + 2) * dim) + first * dim
        return (starts + np.arange(count * dim)).reshape(-1)

    return rows


BY_GROUP = {part: by_group(part) for part in "qkv"}


def qkv_names(
    hf: str = "", rows: Mapping[str, Rows] = QKV, *, gguf: str = "blk.{}.attn_qkv", kinds: Sequence[str] = BOTH
) -> Table:
    """Names of query, key and value where files of either kind hold them in one tensor.

    hf, gguf   the tensor's name in folders and in GGUF files, without the kind; "" where they hold them apart
    rows       those of each part in folders
    kinds      of the tensors that there are
    """
    return tuple(
        Names(
            f"layers.{{}}.attn_{part}.{kind}",
            Stored(f"{gguf}.{kind}", own) if gguf else f"blk.{{}}.attn_{part}.{kind}",
            Stored(f"{hf}.{kind}", rows[part]) if hf else f"model.layers.{{}}.self_attn.{part}_proj.{kind}",
        )
        for part, own in QKV.items()
        for kind in kinds
    )


def gate_up_names(hf: str) -> Table:
    """Names of gate and up part where files of both kinds hold them in one tensor."""
    return tuple(
        Names(f"layers.{{}}.ffn_{part}.weight", Stored("blk.{}.ffn_up.weight", rows), Stored(hf, rows))
        for part, rows in (("gate", stacked(0, ffn_rows, ffn_rows)), ("up", stacked(1, ffn_rows, ffn_rows)))
    )
