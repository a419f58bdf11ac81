"""Parameters that GGUF files store in their metadata, one entry for each layer (activation of Apertus)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.tensor_schema import TensorSchema

MAX_NUMBER = 1e6  # in magnitude


def read_metadata_tensors(
    schema: TensorSchema, metadata: Mapping[str, Any], layers: int, where: str
) -> dict[str, NDArray[np.float32]]:
    """Return float32 [layers, *shape of an entry] by the keys of `TensorSchema.metadata_tensors`, which also name
    tensors.

    A file may have one number for all layers. Raises ModelFileError for a missing key or any other value.
    """
    found = {}
    for key, shape in schema.metadata_tensors.items():
        value = metadata.get(key)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        fields = ConfigValues({key: [value] * layers if isinstance(value, int | float) else value}, where)
        numbers = fields.numbers(key, layers, -MAX_NUMBER, MAX_NUMBER)
        found[key] = np.array(numbers, np.float32).reshape(layers, *shape)
    return found
