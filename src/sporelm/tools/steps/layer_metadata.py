"""Names of a layer's tensors, and its numbers of heads in the metadata."""

import re
from typing import Any

import numpy as np

from sporelm.errors import RequestError
from sporelm.files.tensor_messages import quote
from sporelm.tools.lazy_model import LazyModel

_LAYER_PREFIX = re.compile(r"(?P<layer>.*\bblk\.\d{1,9}\.)(?P<rest>.+)", re.DOTALL)


def split_layer_prefix(name: str) -> tuple[str, str]:
    """A name's layer with its dot, and the rest: "blk.3.attn_q.weight" -> "blk.3.", "attn_q.weight"; else "", name."""
    found = _LAYER_PREFIX.fullmatch(name)
    return (found["layer"], found["rest"]) if found else ("", name)


def read_whole_number(model: LazyModel, key: str, layer: str = "", default: int | None = None) -> int:
    """A positive whole number of metadata; of an array, the one of the layer ("blk.3."). Raises RequestError."""
    value: Any = model.value(key)
    name = key.replace("{arch}", model.architecture)
    if value is None:
        if default is None:
            raise RequestError(f"metadata {quote(name)} is missing, which this step needs; add it with set-meta")
        return default
    if isinstance(value, np.ndarray | list) and layer:
        index = int(layer.split(".")[-2])
        value = np.asarray(value)[index].item() if index < len(value) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"metadata {quote(name)} is {quote(str(value))}; this step needs a whole number from 1")
    return value


def read_head_counts(model: LazyModel, layer: str) -> tuple[int, int]:
    """The numbers of query heads and of key heads of a layer. Raises RequestError."""
    heads = read_whole_number(model, "{arch}.attention.head_count", layer)
    return heads, read_whole_number(model, "{arch}.attention.head_count_kv", layer, heads)
