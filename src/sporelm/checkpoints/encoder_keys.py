"""Keys that encoders share, and the number of labels of their heads."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.models.config import MAX_WIDTH

MAX_TOKEN_TYPES: Final = 1 << 10
MAX_LABELS: Final = 1 << 16
DEFAULT_LABELS: Final = 2  # of the base class of transformers' configurations

GGUF_LAYER_NORM_EPS: Final = Key("eps", "attention.layer_norm_epsilon", "f32")
GGUF_EMBEDDING_WIDTH: Final = Key("embedding_width", "embedding_length_in", "u32", 0, MAX_WIDTH, 0)
HF_LAYER_NORM_EPS: Final = Key("eps", "layer_norm_eps", "f32")
HF_EMBEDDING_WIDTH: Final = Key("embedding_width", "embedding_size", "u32", 0, MAX_WIDTH, 0)
HF_TOKEN_TYPES: Final = Key("token_types", "type_vocab_size", "u32", 0, MAX_TOKEN_TYPES, 0)


def read_head_labels(values: ConfigValues) -> int:
    """Return the number of scores of a folder's classification head."""
    names = values.get("id2label")
    if isinstance(names, dict) and 1 <= len(names) <= MAX_LABELS:
        return len(names)
    return values.integer("num_labels", 1, MAX_LABELS, DEFAULT_LABELS)


def label_names(count: int) -> list[str]:
    """Return the default label names of transformers."""
    return [f"LABEL_{label}" for label in range(count)]


def label_json(count: int) -> dict[str, Any]:
    """Return the labels of a head for config.json; nothing without a head."""
    return {"id2label": {str(label): name for label, name in enumerate(label_names(count))}} if count else {}


def count_rows(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Return the rows of a stored matrix; 0 if there is none."""
    shape = shapes.get(name, ())
    return shape[0] if len(shape) == 2 else 0
