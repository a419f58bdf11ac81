"""Which layers of a hybrid are attention."""

from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.weights.fields import Fields, shown

ATTENTION, OTHER = ("full_attention", "attention", False), ("linear_attention", "mamba", "conv", True)


def attention_layers(values: Fields, told: Any, layers: int) -> frozenset[int]:
    """The layers that a file says are attention, by a list of their kinds' names, or of whether each is recurrent.

    Raises UnsupportedModel for other kinds, ModelFileError for fewer than there are layers.
    """
    kinds = told.tolist() if hasattr(told, "tolist") else told
    if not isinstance(kinds, list | tuple) or any(kind not in ATTENTION + OTHER for kind in kinds):
        names = ", ".join(str(kind) for kind in ATTENTION + OTHER if isinstance(kind, str))
        raise UnsupportedModel(f"{values.where}: kinds of layers must be of {names}; they are {shown(kinds)}")
    if len(kinds) < layers:
        raise ModelFileError(f"{values.where}: {len(kinds)} layers have a kind, there are {layers}")
    return frozenset(layer for layer in range(layers) if kinds[layer] in ATTENTION)
