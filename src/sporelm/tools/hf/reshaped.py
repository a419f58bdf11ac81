"""Weights as files of one kind hold them, made into what files of the other kind hold: mostly another name, sometimes
parts of one tensor put together, transposed, or plus a number. One that must be made is in memory at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np

from sporelm.quant import F32, FORMATS, QuantFormat, quantize_tensor
from sporelm.tools.lazy import Blocks, LazyTensor
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family
from sporelm.weights.forms import brought, held_as, stored_shapes
from sporelm.weights.names import HF, Kind, Param, Stored, stored_form
from sporelm.weights.stored import StoredTensor

KEPT = ("F32", "F16", "BF16")  # types that both kinds of files have


class Reshaper:
    """Tensors of a model's files of kind `source`, by the names that `names` gives for our weights, as `target`'s."""

    def __init__(
        self,
        family: Family,
        config: ModelConfig,
        source: Kind,
        target: Kind,
        names: Mapping[str, str],
        held: Mapping[str, LazyTensor],
    ) -> None:
        self.config, self.source, self.target = config, source, target
        self.names, self.held = names, held
        self._family, self._table = family, family.table(config)
        self._kept: tuple[str, Blocks] | None = None
        self._lock = Lock()

    def tensors(self, params: Sequence[Param]) -> list[LazyTensor]:
        """All tensors of the target, in the order of their first weights."""
        groups: dict[str, list[Param]] = {}
        for param in params:
            groups.setdefault(self._form(param, self.target).name, []).append(param)
        return [tensor for name, group in groups.items() for tensor in self._tensors(name, group)]

    def _form(self, param: Param, kind: Kind) -> Stored:
        form = stored_form(param.name, kind, self._table)
        if kind != self.source:
            return form
        if form.each:
            return replace(form, name=self._family.name_in(form.name, self.held)) if kind == HF else form
        held = self.held[self.names[param.name]]
        return form.of_tensor(held.ggml_type.values, held.shape, self.config)

    def _tensors(self, name: str, group: list[Param]) -> list[LazyTensor]:
        """What the target has of a group of weights: one tensor, or one for each expert."""
        source, target = (self._form(group[0], kind) for kind in (self.source, self.target))
        if source.each and target.each:
            pairs = zip(source.tensors(group[0]), target.tensors(group[0]), strict=True)
            return [replace(self.held[one], name=other) for one, other in pairs]
        if not (source.each or target.each):
            return [self._tensor(name, group)]
        if target.each:
            whole, count = self.held[self.names[group[0].name]], group[0].shape[0]
            whole = whole if source.is_plain else self._moved(name, group[0], group[0].shape)
            size = whole.block_count // count
            return [
                replace(whole, name=each, shape=whole.shape[1:], read=partial(_shifted, whole, number * size))
                for number, each in enumerate(target.tensors(group[0]))
            ]
        parts = [self.held[each] for each in source.tensors(group[0])]
        return [replace(parts[0], name=name, shape=group[0].shape, read=partial(_across, parts))]

    def _tensor(self, name: str, group: list[Param]) -> LazyTensor:
        forms = [self._form(param, kind) for param in group for kind in (self.source, self.target)]
        if all(form.is_plain for form in forms):
            return replace(self.held[self.names[group[0].name]], name=name)
        names = {param.name: name for param in group}
        (shape,) = stored_shapes(group, names, lambda ours: stored_form(ours, self.target, self._table)).values()
        if len(group) == 1 and forms[1].is_plain and replace(forms[0], rows=None, parts=0).is_plain:
            return self._moved(name, group[0], shape)
        types = {self.held[self.names[param.name]].ggml_type.name for param in group}
        (kept,) = types if len(types) == 1 else ("F32",)
        target: type[QuantFormat] = F32
        if kept in KEPT and not any(self._computes(form) for form in forms):
            target = FORMATS[kept]

        def read(start: int, stop: int) -> Blocks:
            with self._lock:
                if self._kept is None or self._kept[0] != name:
                    self._kept = None  # before the next is made
                    blocks = quantize_tensor(target, self._values(name, group)).reshape(-1, target.nbytes)
                    self._kept = name, blocks
                return self._kept[1][start:stop]

        return LazyTensor(name, target.ggml_id, shape, read, work=kept not in KEPT)

    def _computes(self, form: Stored) -> bool:
        """Whether values change on the way."""
        changed = form.plus or form.log or (form.unit and form.unit(self.config))
        return bool(changed) or form.is_multiplied(self.config)

    def _moved(self, name: str, param: Param, shape: tuple[int, ...]) -> LazyTensor:
        """A weight that is some rows of the source's tensor, as the blocks that they are."""
        whole = self.held[self.names[param.name]]
        nbytes = whole.number_format.nbytes

        def read(start: int, stop: int) -> Blocks:
            with self._lock:
                if self._kept is None or self._kept[0] != name:
                    self._kept = None  # before the next is made
                    self._kept = name, self._brought(param).blocks.reshape(-1, nbytes)
                return self._kept[1][start:stop]

        return LazyTensor(name, whole.type_id, shape, read, work=whole.work)

    def _brought(self, param: Param) -> StoredTensor:
        """A weight in our form, out of the source's tensor."""
        tensor = self.held[self.names[param.name]]
        blocks = np.ascontiguousarray(tensor.read(0, tensor.block_count)).reshape(-1)
        stored = StoredTensor(tensor.name, tensor.number_format, tensor.shape, blocks)
        return brought(stored, self._form(param, self.source), self.config, param.shape)

    def _values(self, name: str, group: list[Param]) -> np.ndarray:
        """float32, as the target has it."""
        found = {param.name: self._brought(param).dequantize() for param in group}
        return held_as(found, self.target, self._table, self.config)[name]


def _shifted(whole: LazyTensor, by: int, start: int, stop: int) -> Blocks:
    """Blocks of a part of a tensor, which begins at block `by`."""
    return whole.read(by + start, by + stop)


def _across(parts: Sequence[LazyTensor], start: int, stop: int) -> Blocks:
    """Blocks of tensors of one size, one after the other."""
    size, found = parts[0].block_count, list[Blocks]()
    for number in range(start // size, -(-stop // size)):
        low, high = max(start - number * size, 0), min(stop - number * size, size)
        found.append(parts[number].read(low, high))
    return np.concatenate(found)
