"""Comparison of two models: metadata, names, types, shapes, bytes, and the distance of values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.backends.memory_residency import drop_pages
from sporelm.errors import UnsupportedModel
from sporelm.files.gguf import StringArray
from sporelm.tools.model_files import ModelFiles, filter_names
from sporelm.tools.show import shorten, to_jsonable
from sporelm.tools.tensor_values import CHUNK_VALUES, TensorValues

CHUNK_BYTES = 4 << 20
MAX_SHOWN_ELEMENTS = 8
Progress = Callable[[str, int, int], None]


class MetaChange(NamedTuple):
    """One metadata key that differs: kind and value (arrays clipped) on both sides, None where the key is missing.

    detail says where arrays part: their lengths, or the first place that differs.
    """

    key: str
    first_kind: str | None
    first: Any
    second_kind: str | None
    second: Any
    detail: str = ""


class Distance(NamedTuple):
    """How far the values b of one tensor are from the values a of another.

    max_abs      the largest |a - b|
    rms          the root of the mean of (a - b)^2
    relative     rms over the root of the mean of a^2; None where all of a is 0
    cosine       of the angle between a and b; None where one of them is 0 everywhere
    mismatched   places where just one of the two is NaN or infinite, or both in different ways; they are left out of
                 the other numbers
    """

    max_abs: float
    rms: float
    relative: float | None
    cosine: float | None
    mismatched: int


class TensorChange(NamedTuple):
    """One tensor that differs: type and row-major shape on both sides, None where it is missing.

    same_bytes is None where they were not or could not be compared; why_unread says why there is no distance.
    """

    name: str
    first_type: str | None
    first_shape: tuple[int, ...] | None
    second_type: str | None
    second_shape: tuple[int, ...] | None
    same_bytes: bool | None = None
    distance: Distance | None = None
    why_unread: str = ""


@dataclass(frozen=True)
class ModelDifference:
    """The differences between two models.

    compared      number of tensors that both models have
    other_order   whether these tensors are in another order
    """

    first: Path
    second: Path
    metadata: tuple[MetaChange, ...]
    tensors: tuple[TensorChange, ...]
    compared: int
    other_order: bool

    @property
    def same(self) -> bool:
        """Whether nothing differs; the order of tensors and their places in the file do not count."""
        return not self.metadata and not self.tensors

    def as_json(self) -> dict[str, Any]:
        """The same as an object for `json.dumps`."""
        return {
            "first": str(self.first),
            "second": str(self.second),
            "same": self.same,
            "tensors_compared": self.compared,
            "other_order": self.other_order,
            "metadata": [
                change._asdict() | {"first": to_jsonable(change.first), "second": to_jsonable(change.second)}
                for change in self.metadata
            ],
            "tensors": [
                change._asdict() | {"distance": to_jsonable(change.distance._asdict()) if change.distance else None}
                for change in self.tensors
            ],
        }


def compare_models(
    first: ModelFiles,
    second: ModelFiles,
    *,
    meta: Sequence[str] = (),
    tensors: Sequence[str] = (),
    data: bool = True,
    distance: bool = False,
    progress: Progress | None = None,
) -> ModelDifference:
    """Compare two open models in bounded memory. `meta` and `tensors` are patterns as `filter_names` takes them.

    `data` compares the bytes of tensors that agree in type and shape, `distance` measures how far values are apart
    wherever the shapes agree and the bytes do not. Raises ModelFileError for text that is not UTF-8.
    """
    names = filter_names(dict.fromkeys([*first.tensors, *second.tensors]), tensors)
    both = [name for name in names if name in first.tensors and name in second.tensors]
    total = sum(first.tensors[name].nbytes for name in both) or 1
    changes: list[TensorChange] = []
    done = 0
    for name in names:
        changes += _compare_tensor(first, second, name, data, distance)
        if name in first.tensors and name in second.tensors:
            done += first.tensors[name].nbytes
            if progress:
                progress("comparing", done, total)
    kept = set(both)
    return ModelDifference(
        first.path,
        second.path,
        tuple(_compare_metadata(first, second, meta)),
        tuple(changes),
        len(both),
        [name for name in first.tensors if name in kept] != [name for name in second.tensors if name in kept],
    )


def _compare_metadata(first: ModelFiles, second: ModelFiles, patterns: Sequence[str]) -> Iterator[MetaChange]:
    keys = filter_names(dict.fromkeys([*first.metadata, *second.metadata]), patterns)
    for key in keys:
        sides: list[tuple[str | None, Any]] = []
        for source in (first, second):
            if key in source.metadata:
                sides.append((source.kinds[key], shorten(source.metadata[key], MAX_SHOWN_ELEMENTS)[0]))
            else:
                sides.append((None, None))
        (kind, value), (other_kind, other) = sides
        if kind is None or other_kind is None or kind != other_kind:
            yield MetaChange(key, kind, value, other_kind, other)
        elif (detail := _find_difference(first.metadata[key], second.metadata[key])) is not None:
            yield MetaChange(key, kind, value, other_kind, other, detail)


def _find_difference(value: Any, other: Any) -> str | None:
    """Where two values of one kind part: None if nowhere, "" for scalars."""
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        if len(value) != len(other):
            return f"lengths {len(value)} and {len(other)}"
        # As bits: a NaN is the same as itself, and a negative zero differs from zero.
        apart = np.flatnonzero(_view_bits(value) != _view_bits(other))
        return _describe_places(apart.tolist()[:1], len(apart), len(value))
    if isinstance(value, StringArray) and isinstance(other, StringArray):
        if len(value) != len(other):
            return f"lengths {len(value)} and {len(other)}"
        pairs = enumerate(zip(value.decode_all(), other.decode_all(), strict=True))
        places = [index for index, (ours, theirs) in pairs if ours != theirs]
        return _describe_places(places, len(places), len(value))
    if isinstance(value, list) and isinstance(other, list):
        if len(value) != len(other):
            return f"lengths {len(value)} and {len(other)}"
        places = [i for i, (ours, theirs) in enumerate(zip(value, other, strict=True)) if _is_different(ours, theirs)]
        return _describe_places(places, len(places), len(value))
    return "" if _is_different(value, other) else None


def _is_different(value: Any, other: Any) -> bool:
    """Whether two elements or scalars differ."""
    if isinstance(value, (np.ndarray, StringArray, list)):
        return type(value) is not type(other) or _find_difference(value, other) is not None
    if isinstance(value, float) and isinstance(other, float):
        return value.hex() != other.hex()
    return value != other


def _view_bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def _describe_places(places: list[int], count: int, length: int) -> str | None:
    return f"{count} of {length} elements differ, the first at {places[0]}" if count else None


def _compare_tensor(
    first: ModelFiles, second: ModelFiles, name: str, data: bool, distance: bool
) -> Iterator[TensorChange]:
    one = first.tensors.get(name)
    other = second.tensors.get(name)
    if one is None or other is None:
        sides = [(entry.type_name, entry.shape) if entry else (None, None) for entry in (one, other)]
        yield TensorChange(name, *sides[0], *sides[1])
        return
    change = TensorChange(name, one.type_name, one.shape, other.type_name, other.shape)
    if (one.type_name, one.shape) == (other.type_name, other.shape):
        if not data and not distance:
            return
        if _has_same_data(first, second, name):
            return
        change = change._replace(same_bytes=False)
    if distance and one.shape == other.shape:
        try:
            change = change._replace(distance=measure_distance(TensorValues(first, name), TensorValues(second, name)))
        except UnsupportedModel as reason:
            change = change._replace(why_unread=str(reason))
        drop_pages(first.raw(name))
        drop_pages(second.raw(name))
    yield change


def _has_same_data(first: ModelFiles, second: ModelFiles, name: str) -> bool:
    """Whether tensors of one type and shape hold the same; where the byte orders differ, by their values."""
    if first.is_big(first.tensors[name].file_index) != second.is_big(second.tensors[name].file_index):
        ours = TensorValues(first, name)
        theirs = TensorValues(second, name)
        pairs = zip(ours.chunks(), theirs.chunks(), strict=True)
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
    raw = first.raw(name)
    other = second.raw(name)
    starts = range(0, len(raw), CHUNK_BYTES)
    is_same = all(np.array_equal(raw[at : at + CHUNK_BYTES], other[at : at + CHUNK_BYTES]) for at in starts)
    drop_pages(raw)
    drop_pages(other)
    return is_same


def measure_distance(first: TensorValues, second: TensorValues) -> Distance:
    """How far apart the values of two tensors of one shape are; sums in float64."""
    largest = squares = ours = theirs = product = 0.0
    mismatched = counted = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, first.size, CHUNK_VALUES):
            stop = min(start + CHUNK_VALUES, first.size)
            a, b = (values.read(start, stop).astype(np.float64) for values in (first, second))
            is_finite = np.isfinite(a) & np.isfinite(b)
            if not is_finite.all():
                odd_a = a[~is_finite]
                odd_b = b[~is_finite]
                mismatched += int((~((odd_a == odd_b) | (np.isnan(odd_a) & np.isnan(odd_b)))).sum())
                a = a[is_finite]
                b = b[is_finite]
            apart = a - b
            largest = max(largest, float(np.abs(apart).max(initial=0)))
            counted += a.size
            squares += float(np.dot(apart, apart))
            ours = ours + float(np.dot(a, a))
            theirs = theirs + float(np.dot(b, b))
            product += float(np.dot(a, b))
    relative = sqrt(squares / ours) if ours and isfinite(squares) and isfinite(ours) else None
    norms = sqrt(ours) * sqrt(theirs)
    cosine = product / norms if norms and isfinite(norms) and isfinite(product) else None
    rms = sqrt(squares / counted) if counted and squares >= 0 else squares
    return Distance(largest, rms, relative, cosine, mismatched)
