"""Recurrent states in pools of one array for each shape of each layer: what back-ends with such pools share."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import prod
from typing import Any

from sporelm.backends.protocol import StateShapes
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

LayerStates = Sequence[tuple[Tensor, ...]]  # the tensors of each layer


def pool_shapes(count: int, layers: Sequence[StateShapes]) -> list[tuple[int, ...]]:
    """Return the shape of each array of a pool of `count` states."""
    return [(count, *shape) for layer in layers for shape in layer]


def wrap_pool(
    backend: Any, count: int, layers: Sequence[StateShapes], storage: Callable[[int, tuple[int, ...]], Any]
) -> list[tuple[Tensor, ...]]:
    """Return the float32 tensors of a pool by layer. `storage(number, shape)` returns that of each array."""
    tensors = [
        Tensor(F32, Layout.contiguous(shape), storage(number, shape), backend)
        for number, shape in enumerate(pool_shapes(count, layers))
    ]
    return group_by_layer(tensors, layers)


def state_bytes(layers: Sequence[StateShapes]) -> int:
    """Return the bytes of one state."""
    return sum(prod(shape) * F32.nbytes for layer in layers for shape in layer)


def list_tensors(caches: LayerStates) -> list[Tensor]:
    """Return the tensors of all layers in one list."""
    return [tensor for cache in caches for tensor in cache]


def group_by_layer(tensors: Iterable[Tensor], layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
    """Group tensors, one for each shape of each layer, into a tuple per layer."""
    remaining = iter(tensors)
    return [tuple(islice(remaining, len(layer))) for layer in layers]
