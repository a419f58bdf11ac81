"""Converts the stored tensors of one kind of files to those of the other kind.

Most change only their name. Others are cut, joined, transposed or computed: one such tensor is in memory at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np

from sporelm.checkpoints.tensor_mapping import MappedTensor, TensorMapping, save_group, stored_shape
from sporelm.checkpoints.transforms import PermuteRotary, TakePart, TakeRows, as_f32
from sporelm.quant import F32, FORMATS, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tools.lazy_model import Blocks, LazyTensor

SHARED_TYPES = ("F32", "F16", "BF16")  # types that both kinds of files have
ROW_TRANSFORMS = (TakeRows, TakePart, PermuteRotary)  # they move whole rows, so that blocks stay as they are


class TensorConverter:
    """Stored tensors of a model's files as those of the other kind of files.

    source    the mapping of the files at hand, bound to their tensors
    target    the mapping of the files to be written
    stored    the tensors at hand by name
    """

    def __init__(self, source: TensorMapping, target: TensorMapping, stored: Mapping[str, LazyTensor]) -> None:
        self._source = source.by_param
        self._target = target
        self._stored = stored
        self._cached: tuple[str, Blocks] | None = None
        self._lock = Lock()

    def tensors(self) -> list[LazyTensor]:
        """Return the tensors to be written, in the order of their first parameters. None is read yet."""
        found: list[LazyTensor] = []
        names = set[str]()
        for mapped in self._target.tensors:
            if mapped.sources[0] not in names:
                names |= set(mapped.sources)
                found += self._convert(self._target.by_source[mapped.sources[0]])
        return found

    def _convert(self, group: Sequence[MappedTensor]) -> list[LazyTensor]:
        """Return the stored tensor of a group of parameters, or one for each expert of a parameter."""
        target = group[0]
        source = self._source[target.param.name]
        if source.stack and target.stack:
            pairs = zip(source.sources, target.sources, strict=True)
            return [replace(self._stored[one], name=other) for one, other in pairs]
        if target.stack:
            whole = self._stored[source.sources[0]]
            if not source.is_plain:
                whole = self._move_rows(target.sources[0], source, target, target.param.shape)
            size = whole.block_count // target.param.shape[0]
            return [
                replace(whole, name=name, shape=whole.shape[1:], read=partial(_read_shifted, whole, number * size))
                for number, name in enumerate(target.sources)
            ]
        if source.stack:
            parts = [self._stored[name] for name in source.sources]
            shape = target.param.shape
            return [replace(parts[0], name=target.sources[0], shape=shape, read=partial(_read_concatenated, parts))]
        return [self._convert_group(target.sources[0], group)]

    def _convert_group(self, name: str, group: Sequence[MappedTensor]) -> LazyTensor:
        sources = [self._source[each.param.name] for each in group]
        if all(each.is_plain for each in (*sources, *group)):
            return replace(self._stored[sources[0].sources[0]], name=name)
        shape = stored_shape(group)
        if len(group) == 1 and _moves_rows(sources[0], ROW_TRANSFORMS) and _moves_rows(group[0], (PermuteRotary,)):
            return self._move_rows(name, sources[0], group[0], shape)
        types = {self._stored[each.sources[0]].ggml_type.name for each in sources}
        (common,) = types if len(types) == 1 else ("F32",)
        number_format: type[QuantFormat] = F32
        if common in SHARED_TYPES and not any(each.changes_values for each in (*sources, *group)):
            number_format = FORMATS[common]

        def make() -> Blocks:
            parts = [as_f32(self._load(each)) for each in sources]
            values = save_group(group, parts)[name].dequantize()
            return quantize_tensor(number_format, values).reshape(-1, number_format.nbytes)

        read = partial(self._read_made, name, make)
        return LazyTensor(name, number_format.ggml_id, shape, read, is_computed=common not in SHARED_TYPES)

    def _move_rows(self, name: str, source: MappedTensor, target: MappedTensor, shape: tuple[int, ...]) -> LazyTensor:
        """Return a tensor whose rows are rows of a stored one, in its number format."""
        whole = self._stored[source.sources[0]]

        def make() -> Blocks:
            moved = self._load(source)
            if not target.stack:
                (moved,) = target.save(moved)
            return moved.blocks.reshape(-1, whole.number_format.nbytes)

        return LazyTensor(
            name, whole.type_id, shape, partial(self._read_made, name, make), is_computed=whole.is_computed
        )

    def _load(self, source: MappedTensor) -> StoredTensor:
        """Return a parameter out of the stored tensor that has it."""
        tensor = self._stored[source.sources[0]]
        blocks = np.ascontiguousarray(tensor.read(0, tensor.block_count)).reshape(-1)
        return source.load(StoredTensor(tensor.name, tensor.number_format, tensor.shape, blocks))

    def _read_made(self, name: str, make: Callable[[], Blocks], start: int, stop: int) -> Blocks:
        """Return some blocks of a tensor that is made when the first is asked for, and kept until another is made."""
        with self._lock:
            if self._cached is None or self._cached[0] != name:
                self._cached = None  # freed before the next one is made
                self._cached = name, make()
            return self._cached[1][start:stop]


def _moves_rows(tensor: MappedTensor, kinds: tuple[type, ...]) -> bool:
    return all(isinstance(each, kinds) for each in tensor.transforms)


def _read_shifted(whole: LazyTensor, by: int, start: int, stop: int) -> Blocks:
    """Return blocks of a part of a tensor, which begins at block `by`."""
    return whole.read(by + start, by + stop)


def _read_concatenated(parts: Sequence[LazyTensor], start: int, stop: int) -> Blocks:
    """Return blocks of tensors of one size, one after the other."""
    size = parts[0].block_count
    found = list[Blocks]()
    for number in range(start // size, -(-stop // size)):
        low = max(start - number * size, 0)
        high = min(stop - number * size, size)
        found.append(parts[number].read(low, high))
    return np.concatenate(found)
