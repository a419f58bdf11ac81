"""Recurrent states of the CPU: the state of all layers is contiguous, so one memory move copies it."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.cpu.runtime.host_memory import ALIGNMENT
from sporelm.backends.cpu.runtime.tensor_storage import PageStore, PoolMemory, page_store
from sporelm.backends.layer_states import group_by_layer
from sporelm.backends.protocol import StateShapes
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

States = Sequence[tuple[Tensor, ...]]  # by layer


def allocate_states(backend: Any, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
    """Allocate a pool: float32 [count, *shape] of each layer's shapes, each array of a state at a multiple of
    ALIGNMENT."""
    stride = state_bytes(layers)
    memory = PoolMemory(backend.context, count * stride, f"{count} states of {len(layers)} layers")
    tensors, offset = [], 0
    for each in (shape for layer in layers for shape in layer):
        shape = (count, *each)
        store = PageStore(memory.array[offset:], shape, stride, memory)
        tensors.append(Tensor(F32, Layout.contiguous(shape), store, backend))
        offset += _nbytes(each)
    return group_by_layer(tensors, layers)


def state_bytes(layers: Sequence[StateShapes]) -> int:
    """Return the bytes from one state to the next."""
    return sum(_nbytes(shape) for layer in layers for shape in layer)


def export_states(caches: States, states: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return copies of the contents of states: [len(states), *shape] of each tensor."""
    return [_view(tensor)[list(states)] for cache in caches for tensor in cache]


def import_states(caches: States, states: Sequence[int], arrays: Sequence[NDArray[np.float32]]) -> None:
    """Import the result of `export_states` into states. Changes the pool."""
    tensors = [tensor for cache in caches for tensor in cache]
    for tensor, array in zip(tensors, arrays, strict=True):
        _view(tensor)[list(states)] = array


def _nbytes(shape: Sequence[int]) -> int:
    return -(-prod(shape) * F32.nbytes // ALIGNMENT) * ALIGNMENT


def _view(tensor: Tensor) -> NDArray[np.float32]:
    """Return a view of a tensor's contents, in its shape."""
    store = page_store(tensor)
    inner = Layout.contiguous(tensor.shape[1:]).strides
    strides = (store.stride, *(stride * F32.nbytes for stride in inner))
    first = store.array[: len(store.array) // 4 * 4].view(np.float32)
    return np.lib.stride_tricks.as_strided(first, tensor.shape, strides)
