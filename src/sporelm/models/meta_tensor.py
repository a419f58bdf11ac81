"""Weights and caches without values, with which a model is traced before it is loaded."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.models.blocks.block_memory import State
from sporelm.ops import Op, Spec
from sporelm.ops.paged_attention import page_shape
from sporelm.tensor.dtype import F32, ElementType

NUM_SLOTS = 4  # pages and states of a cache without values


class MetaTensor:
    """A weight or a cache without values, on a device that computes nothing."""

    graph = None

    def __init__(self, shape: Sequence[Any], dtype: ElementType) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, META_DEVICE

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)


class MetaDevice:
    """A device whose ops return meta tensors."""

    name = "meta"

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        results = tuple(MetaTensor(spec.shape, spec.dtype) for spec in op.results(args, options))
        return results[0] if len(results) == 1 else results or None


META_DEVICE = MetaDevice()


def create_meta_caches(memory: Sequence[Any]) -> list[Any]:
    """Return a cache without values for each memory of a model."""
    found: list[Any] = []
    for each in memory:
        if isinstance(each, State):
            found.append(tuple(MetaTensor((NUM_SLOTS, *shape), F32) for shape in each.shapes))
        else:
            found.append(MetaTensor((NUM_SLOTS, *page_shape(each.position_shape)), F32))
    return found
