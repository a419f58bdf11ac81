"""The mapping from stored tensors to parameters: the result of resolving a schema's table for one model.

Readers walk the list from parameters to stored tensors; writers walk it back, from a stored tensor to all parameters
that it holds (`by_source`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.tensor_table import Step
from sporelm.checkpoints.transforms import EXPERTS, Cut, PermuteRotary, Shape, Stack, Transform, tensor_of_values
from sporelm.models.params import Param
from sporelm.quant import format_of
from sporelm.quant.stored_tensor import StoredTensor


class TensorInfo(Protocol):
    """The header entry of a tensor in a file."""

    @property
    def shape(self) -> Shape: ...

    @property
    def type_name(self) -> str: ...


@dataclass(frozen=True)
class MappedTensor:
    """One parameter, its stored tensors and the transforms between them.

    sources      names of the stored tensors: one, or one for each expert
    transforms   bound to the model, in loading order; they apply to each stored tensor
    stack        stacks several tensors; None: there is one
    """

    param: Param
    sources: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()
    stack: Stack | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the stored tensor is the parameter, unchanged."""
        return not self.transforms and self.stack is None

    @property
    def changes_values(self) -> bool:
        """Whether the parameter's values differ from the stored ones."""
        return any(transform.changes_values for transform in self.transforms)

    @property
    def source_shape(self) -> Shape:
        """The shape of each stored tensor if it holds no other parameter."""
        shape = self._loaded_shape
        for transform in reversed(self.transforms):
            shape = transform.shape(shape)
        return shape

    def for_tensor(self, values_per_block: int, shape: Shape) -> "MappedTensor":
        """Return the mapping for a stored tensor of this shape and block size: some transforms depend on them.

        values_per_block   of its number format
        """
        steps = [each.for_tensor(values_per_block, shape) for each in self.transforms]
        if all(new is old for new, old in zip(steps, self.transforms, strict=True)):
            return self
        config = self.transforms[0].config
        return replace(self, transforms=bind_transforms([each for each in steps if each], config, self._loaded_shape))

    @property
    def is_dequantizing(self) -> bool:
        """Whether a quantized tensor is loaded as F32."""
        return any(transform.is_dequantizing for transform in self.transforms)

    @property
    def lora_conflict(self) -> str:
        """The reason why an adapter cannot be added to the stored tensors; "" if it can."""
        if self.stack:
            return EXPERTS
        return next((each.lora_conflict for each in self.transforms if each.lora_conflict), "")

    def load(self, tensor: StoredTensor) -> StoredTensor:
        """Return the parameter in a stored tensor, or its part of `stack`."""
        for transform in self.transforms:
            tensor = transform.load(tensor)
        return tensor

    def save(self, tensor: StoredTensor) -> list[StoredTensor]:
        """Return the stored tensors of a parameter, if they hold no other parameter."""
        parts = self.stack.save(tensor) if self.stack else [tensor]
        return [_save(self.transforms, part) for part in parts]

    @property
    def cut_index(self) -> int | None:
        """The index of the transform that takes a part of the stored tensor; None if the parameter is all of it."""
        return next((index for index, each in enumerate(self.transforms) if isinstance(each, Cut)), None)

    @property
    def _loaded_shape(self) -> Shape:
        return self.stack.shape(self.param.shape) if self.stack else self.param.shape


@dataclass(frozen=True)
class TensorMapping:
    """The mapped tensors of a model's parameters."""

    tensors: tuple[MappedTensor, ...]

    @cached_property
    def by_param(self) -> dict[str, MappedTensor]:
        """The mapped tensors by the name of their parameter."""
        return {each.param.name: each for each in self.tensors}

    @cached_property
    def by_source(self) -> dict[str, list[MappedTensor]]:
        """The inverse: the mapped tensors of each stored tensor."""
        found: dict[str, list[MappedTensor]] = {}
        for each in self.tensors:
            for source in each.sources:
                found.setdefault(source, []).append(each)
        return found

    @property
    def has_permuted_rows(self) -> bool:
        """Whether the files store the rows of rotary heads as adjacent pairs."""
        return any(isinstance(step, PermuteRotary) for each in self.tensors for step in each.transforms)

    def source_shapes(self) -> dict[str, Shape]:
        """Return the shapes that the stored tensors must have, by name."""
        return {source: stored_shape(group) for source, group in self.by_source.items()}

    def with_tensors(self, tensors: Iterable[MappedTensor]) -> "TensorMapping":
        """Return the mapping with some of its tensors replaced."""
        changes = {each.param.name: each for each in tensors}
        return TensorMapping(tuple(changes.get(each.param.name, each) for each in self.tensors))

    def save(self, weights: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """Return the stored tensors that hold these weights, by name."""
        found: dict[str, NDArray[np.float32]] = {}
        for source, group in self.by_source.items():
            if source not in found:
                tensors = [tensor_of_values(each.param.name, weights[each.param.name]) for each in group]
                found |= {name: tensor.dequantize() for name, tensor in save_group(group, tensors).items()}
        return found


def bind_transforms(transforms: Sequence[Transform], config: Any, shape: Shape) -> tuple[Transform, ...]:
    """Return transforms bound to a model and to the parameter's shape."""
    found = []
    for transform in reversed(transforms):
        found.append(transform.bind(config, shape))
        shape = found[-1].shape(shape)
    return tuple(reversed(found))


def map_tensor(
    param: Param, name: str, steps: Sequence[Step], config: Any, tensors: Mapping[str, TensorInfo] | None = None
) -> MappedTensor:
    """Return the mapping of a parameter to the stored tensors of a name, in which "{e}" is the number of an expert.

    tensors   of the file, by name, on which some transforms depend; None: there is no file yet
    """
    stack = next((step for step in steps if isinstance(step, Stack)), None)
    sources: tuple[str, ...] = (name,)
    shape = param.shape
    if stack:
        sources = stack.source_names(name, param.shape[0])
        shape = stack.shape(param.shape)
    info = tensors.get(sources[0]) if tensors else None
    transforms = [step for step in steps if isinstance(step, Transform) and (info or not step.is_optional)]
    found = MappedTensor(param, sources, bind_transforms(transforms, config, shape), stack)
    return found.for_tensor(format_of(info.type_name).values, info.shape) if info and transforms else found


def stored_shape(group: Sequence[MappedTensor]) -> Shape:
    """Return the shape of the stored tensor that holds a group of parameters."""
    index = group[0].cut_index
    if index is None:
        return group[0].source_shape
    cut = _get_cut(group[0], index)
    shape = cut.join_shapes([each.transforms[index].loaded_shape for each in group])
    for transform in reversed(group[0].transforms[:index]):
        shape = transform.shape(shape)
    return shape


def save_group(group: Sequence[MappedTensor], tensors: Sequence[StoredTensor]) -> dict[str, StoredTensor]:
    """Return the stored tensors, by name, of a group of parameters that share one stored tensor."""
    first = group[0]
    index = first.cut_index
    if index is None:
        return dict(zip(first.sources, first.save(tensors[0]), strict=True))
    cuts = [_get_cut(each, index) for each in group]
    found = {}
    for number, source in enumerate(first.sources):
        pairs = zip(group, tensors, strict=True)
        each_part = [(each, each.stack.save(tensor)[number] if each.stack else tensor) for each, tensor in pairs]
        parts = [_save(each.transforms[index + 1 :], part) for each, part in each_part]
        found[source] = _save(first.transforms[:index], cuts[0].join(cuts, parts))
    return found


def _get_cut(tensor: MappedTensor, index: int) -> Cut:
    cut = tensor.transforms[index]
    assert isinstance(cut, Cut), f"{tensor.param.name}: all parts of {tensor.sources[0]} must be cut in the same way"
    return cut


def _save(transforms: Sequence[Transform], tensor: StoredTensor) -> StoredTensor:
    for transform in reversed(transforms):
        tensor = transform.save(tensor)
    return tensor
