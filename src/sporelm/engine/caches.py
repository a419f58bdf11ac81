"""The caches of a model's layers, allocated and freed together: KV pages and recurrent states."""

from collections.abc import Iterable, Sequence
from typing import Any

from sporelm.backends.protocol import Backend
from sporelm.models.blocks.block_memory import State
from sporelm.tensor.dtype import ElementType


def allocate_caches(memory: Iterable[Any], device: Backend, pages: int, states: int, kv: ElementType) -> list[Any]:
    """Return a cache for each layer: a tensor of `pages` pages of type `kv`, or a tuple of tensors of `states`."""
    layers = list(memory)
    paged = [each.position_shape for each in layers if not isinstance(each, State)]
    recurrent = [each.shapes for each in layers if isinstance(each, State)]
    tensors = device.allocate_pages(pages, paged, kv) if paged else []
    try:
        tuples = device.allocate_states(states, recurrent) if recurrent else []
    except BaseException:
        device.free_pages(tensors)
        raise
    of_pages, of_states = iter(tensors), iter(tuples)
    return [next(of_states) if isinstance(each, State) else next(of_pages) for each in layers]


def free_caches(caches: Sequence[Any], device: Backend) -> None:
    """Free the result of `allocate_caches`."""
    device.free_pages([cache for cache in caches if not isinstance(cache, tuple)])
    device.free_states([cache for cache in caches if isinstance(cache, tuple)])
