"""Tensors and rows that llama.cpp requires in GGUF files although a folder does not hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from sporelm.quant import F32
from sporelm.tools.lazy_model import Blocks, LazyTensor


def add_missing_tensors(tensors: Sequence[LazyTensor], required: Mapping[str, tuple[int, ...]]) -> list[LazyTensor]:
    """Return the tensors with the `required` ones added, as zeros, and missing last rows filled with the first row.

    Nothing is read yet.
    """
    found = {tensor.name: tensor for tensor in tensors}
    like = next((tensor.type_id for tensor in tensors if len(tensor.shape) > 1), F32.ggml_id)
    for name, shape in required.items():
        held = found.get(name)
        if held is None:
            found[name] = _make_zeros(name, shape, like if len(shape) > 1 else F32.ggml_id)
        elif held.shape[0] < shape[0]:
            found[name] = _repeat_first_row(held, shape)
    return list(found.values())


def _make_zeros(name: str, shape: tuple[int, ...], type_id: int) -> LazyTensor:
    made = LazyTensor(name, type_id, shape, lambda start, stop: np.empty((0, 0), np.uint8))
    nbytes = made.nbytes // made.block_count
    return replace(made, read=lambda start, stop: np.zeros((stop - start, nbytes), np.uint8))


def _repeat_first_row(tensor: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    """Return the tensor with its first row in place of the missing rows."""
    own = tensor.block_count
    row = prod(tensor.shape[1:]) // tensor.ggml_type.values

    def read(start: int, stop: int) -> Blocks:
        parts = [tensor.read(start, min(stop, own))] if start < own else []
        if stop > own:
            first = tensor.read(0, row)
            parts.append(first[(np.arange(max(start, own), stop) - own) % row])
        return np.concatenate(parts)

    return replace(tensor, shape=shape, read=read)
