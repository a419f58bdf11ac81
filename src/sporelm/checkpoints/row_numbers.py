"""Functions from a configuration to the row numbers that `TakeRows` loads."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sporelm.models.config import ModelConfig

RowCount = Callable[[ModelConfig], int]
RowNumbers = Callable[[ModelConfig], NDArray[np.int64]]


def count_query_rows(config: ModelConfig) -> int:
    """Return the number of rows of the query projection."""
    return config.heads * config.head_dim


def count_key_rows(config: ModelConfig) -> int:
    """Return the number of rows of the key projection, or of the value projection."""
    return config.kv_heads * config.head_dim


def count_ffn_rows(config: ModelConfig) -> int:
    """Return the number of rows of the gate projection, or of the up projection."""
    return config.ffn


def count_expert_rows(config: ModelConfig) -> int:
    """Return the number of rows of the gate projection, or of the up projection, of each expert."""
    assert config.experts is not None
    return config.experts.ffn or config.ffn


def count_shared_expert_rows(config: ModelConfig) -> int:
    """Return the same for the shared expert."""
    assert config.experts is not None
    return config.experts.shared_width


def rows_of_part(part: int, *counts: RowCount) -> RowNumbers:
    """Return the rows of part number `part` of a tensor whose parts, with these row counts, follow one another."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        start = sum(count(config) for count in counts[:part])
        return np.arange(start, start + counts[part](config))

    return rows


def interleaved_rows(first: int, count: RowCount) -> RowNumbers:
    """Return every second row of a tensor in which two parts alternate: `count` rows, starting at row `first`."""
    return lambda config: np.arange(count(config)) * 2 + first


def rows_of_groups(parts: Sequence[int], groups: RowCount, *counts: RowCount) -> RowNumbers:
    """Return the rows of some parts of a tensor that has all parts for each of its groups.

    parts    numbers of the parts, in the order of the result
    counts   rows of each part in a group
    """

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        ends = np.cumsum([0, *(count(config) for count in counts)])
        starts = np.arange(groups(config))[:, None] * ends[-1]
        return np.concatenate([(starts + np.arange(ends[part], ends[part + 1])).reshape(-1) for part in parts])

    return rows


def rows_by_kv_head(name: str) -> RowNumbers:
    """Return the rows of "q", "k" or "v" in a tensor that has, for each KV head, its query heads, its key and its
    value."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        group, dim = config.heads // config.kv_heads, config.head_dim
        first, count = {"q": (0, group), "k": (group, 1), "v": (group + 1, 1)}[name]
        starts = np.arange(config.kv_heads)[:, None] * ((group + 2) * dim) + first * dim
        return (starts + np.arange(count * dim)).reshape(-1)

    return rows


QKV_ROWS = {
    name: rows_of_part(number, count_query_rows, count_key_rows, count_key_rows) for number, name in enumerate("qkv")
}
QKV_ROWS_BY_KV_HEAD = {name: rows_by_kv_head(name) for name in "qkv"}
GATE_UP_ROWS = {
    name: rows_of_part(number, count_ffn_rows, count_ffn_rows) for number, name in enumerate(("gate", "up"))
}
EXPERT_GATE_UP_ROWS = {
    name: rows_of_part(number, count_expert_rows, count_expert_rows) for number, name in enumerate(("gate", "up"))
}
SHARED_EXPERT_GATE_UP_ROWS = {
    name: rows_of_part(number, count_shared_expert_rows, count_shared_expert_rows)
    for number, name in enumerate(("gate", "up"))
}
