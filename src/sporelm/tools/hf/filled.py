"""What llama.cpp wants in GGUF files beyond what a folder holds: tensors that nobody reads, rows that nothing has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from sporelm.quant import F32
from sporelm.tools.lazy import Blocks, LazyTensor


def filled(tensors: Sequence[LazyTensor], wanted: Mapping[str, tuple[int, ...]]) -> list[LazyTensor]:
    """The tensors with those `wanted`, of these shapes: zeros where there is none, the first row again where rows are
    missing at the end. Nothing is read yet."""
    found = {tensor.name: tensor for tensor in tensors}
    like = next((tensor.type_id for tensor in tensors if len(tensor.shape) > 1), F32.ggml_id)
    for name, shape in wanted.items():
        held = found.get(name)
        if held is None:
            found[name] = _zeros(name, shape, like if len(shape) > 1 else F32.ggml_id)
        elif held.shape[0] < shape[0]:
            found[name] = _longer(held, shape)
    return list(found.values())


def _zeros(name: str, shape: tuple[int, ...], type_id: int) -> LazyTensor:
    made = LazyTensor(name, type_id, shape, lambda start, stop: np.empty((0, 0), np.uint8))
    nbytes = made.nbytes // made.block_count
    return replace(made, read=lambda start, stop: np.zeros((stop - start, nbytes), np.uint8))


def _longer(tensor: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    """The tensor with its first row in place of those that it lacks."""
    own, row = tensor.block_count, prod(tensor.shape[1:]) // tensor.ggml_type.values

    def read(start: int, stop: int) -> Blocks:
        parts = [tensor.read(start, min(stop, own))] if start < own else []
        if stop > own:
            first = tensor.read(0, row)
            parts.append(first[(np.arange(max(start, own), stop) - own) % row])
        return np.concatenate(parts)

    return replace(tensor, shape=shape, read=read)
