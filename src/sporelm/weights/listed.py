"""Weights that GGUF files hold in their metadata, a number for each layer (Apertus's activation), as tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.weights.family import Family
from sporelm.weights.fields import Fields

MOST_NUMBER = 1e6  # of either sign


def listed_numbers(
    family: Family, metadata: Mapping[str, Any], layers: int, where: str
) -> dict[str, NDArray[np.float32]]:
    """float32 [layers, *what `Family.listed` says] by the keys, which are the names of tensors too.

    A file may say one number for all layers. Raises ModelFileError for a key that is missing, or holds anything else.
    """
    found = {}
    for key, shape in family.listed.items():
        told = metadata.get(key)
        if isinstance(told, np.ndarray):
            told = told.tolist()
        values = Fields({key: [told] * layers if isinstance(told, int | float) else told}, where)
        numbers = values.numbers(key, layers, -MOST_NUMBER, MOST_NUMBER)
        found[key] = np.array(numbers, np.float32).reshape(layers, *shape)
    return found
