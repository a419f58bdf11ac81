"""Weights as the CPU back-end packs them."""

from typing import Any

from sporelm.backends.cpu.runtime.tensor_storage import PackedMatrix
from sporelm.errors import BackendError


def packed_weight(weight: Any) -> PackedMatrix:
    if not isinstance(weight.storage, PackedMatrix):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    return weight.storage
