"""Recurrent states of the CPU: a state of all layers lies together, so that copying one is one move of memory."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.backend import Shapes
from sporelm.backends.cpu.memory import ALIGNMENT
from sporelm.backends.cpu.storage import PageMemory, PageStore, page_store
from sporelm.backends.functions import by_layer
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

States = Sequence[tuple[Tensor, ...]]  # by layer


def made_states(backend: Any, count: int, layers: Sequence[Shapes]) -> list[tuple[Tensor, ...]]:
    """A pool: float32 [count, *shape] of each layer's shapes, each array of a state at a multiple of ALIGNMENT."""
    stride = state_bytes(layers)
    memory = PageMemory(backend.context, count * stride, f"{count} states of {len(layers)} layers")
    tensors, offset = [], 0
    for each in (shape for layer in layers for shape in layer):
        shape = (count, *each)
        store = PageStore(memory.array[offset:], shape, stride, memory)
        tensors.append(Tensor(F32, Layout.contiguous(shape), store, backend))
        offset += _nbytes(each)
    return by_layer(tensors, layers)


def state_bytes(layers: Sequence[Shapes]) -> int:
    """Bytes from one state to the next."""
    return sum(_nbytes(shape) for layer in layers for shape in layer)


def copied(caches: States, copies: Sequence[tuple[int, int]]) -> None:
    """Copy states (source, target), one after the other. Changes the pool."""
    store = page_store(next(tensor for cache in caches for tensor in cache))
    whole = store.memory.array.reshape(-1, store.stride)
    for source, target in copies:
        whole[target] = whole[source]


def exported_states(caches: States, states: Sequence[int]) -> list[NDArray[np.float32]]:
    """What states hold: [len(states), *shape] of each tensor, copies."""
    return [_seen(tensor)[list(states)] for cache in caches for tensor in cache]


def imported_states(caches: States, states: Sequence[int], arrays: Sequence[NDArray[np.float32]]) -> None:
    """Put into states what `exported_states` gave. Changes the pool."""
    tensors = [tensor for cache in caches for tensor in cache]
    for tensor, array in zip(tensors, arrays, strict=True):
        _seen(tensor)[list(states)] = array


def _nbytes(shape: Sequence[int]) -> int:
    return -(-prod(shape) * F32.nbytes // ALIGNMENT) * ALIGNMENT


def _seen(tensor: Tensor) -> NDArray[np.float32]:
    """A view of what a tensor holds, as its shape says."""
    store = page_store(tensor)
    inner = Layout.contiguous(tensor.shape[1:]).strides
    strides = (store.stride, *(stride * F32.nbytes for stride in inner))
    first = store.array[: len(store.array) // 4 * 4].view(np.float32)
    return np.lib.stride_tricks.as_strided(first, tensor.shape, strides)
