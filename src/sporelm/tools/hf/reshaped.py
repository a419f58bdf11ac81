"""Weights as files of one kind hold them, made into what files of the other kind hold: mostly another name, sometimes
parts of one tensor put together, transposed, or plus a number. One that must be made is in memory at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock

import numpy as np

from sporelm.quant import F32, FORMATS, QuantFormat, quantize_tensor
from sporelm.tools.lazy import Blocks, LazyTensor
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family
from sporelm.weights.forms import brought, held_as, stored_shapes
from sporelm.weights.names import Kind, Param, Stored, stored_form
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
        self.family, self.config, self.source, self.target = family, config, source, target
        self.names, self.held = names, held
        self._kept: tuple[str, Blocks] | None = None
        self._lock = Lock()

    def tensors(self, params: Sequence[Param]) -> list[LazyTensor]:
        """All tensors of the target, in the order of their first weights."""
        groups: dict[str, list[Param]] = {}
        for param in params:
            groups.setdefault(self._form(param, self.target).name, []).append(param)
        return [self._tensor(name, group) for name, group in groups.items()]

    def _form(self, param: Param, kind: Kind) -> Stored:
        return stored_form(param.name, kind, self.family.names)

    def _tensor(self, name: str, group: list[Param]) -> LazyTensor:
        forms = [self._form(param, kind) for param in group for kind in (self.source, self.target)]
        if all(form.is_plain for form in forms):
            return replace(self.held[self.names[group[0].name]], name=name)
        names = {param.name: name for param in group}
        (shape,) = stored_shapes(group, names, lambda ours: stored_form(ours, self.target, self.family.names)).values()
        types = {self.held[self.names[param.name]].ggml_type.name for param in group}
        (kept,) = types if len(types) == 1 else ("F32",)
        target: type[QuantFormat] = F32
        if kept in KEPT and not any(form.plus for form in forms):
            target = FORMATS[kept]

        def read(start: int, stop: int) -> Blocks:
            with self._lock:
                if self._kept is None or self._kept[0] != name:
                    self._kept = None  # before the next is made
                    blocks = quantize_tensor(target, self._values(name, group)).reshape(-1, target.nbytes)
                    self._kept = name, blocks
                return self._kept[1][start:stop]

        return LazyTensor(name, target.ggml_id, shape, read, work=kept not in KEPT)

    def _values(self, name: str, group: list[Param]) -> np.ndarray:
        """float32, as the target has it."""
        found = {}
        for param in group:
            tensor = self.held[self.names[param.name]]
            blocks = np.ascontiguousarray(tensor.read(0, tensor.block_count)).reshape(-1)
            stored = StoredTensor(tensor.name, tensor.number_format, tensor.shape, blocks)
            found[param.name] = brought(stored, self._form(param, self.source), self.config).dequantize()
        return held_as(found, self.target, self.family.names, self.config)[name]
