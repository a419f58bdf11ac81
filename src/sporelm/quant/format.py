"""What a number format is, and the register of those we compute with.

A format says how `values` numbers lie in a block of `nbytes` bytes. Multi-byte numbers inside a block are
little-endian, as in GGUF and safetensors files; `swapped` gives the blocks of a big-endian file that form.
"""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError, UnsupportedModel
from sporelm.quant.ggml_types import ggml_type_name

NOT_GGML = -1
CHUNK_VALUES = 1 << 18  # values converted at a time: bounds the temporaries to about 1 MiB each


class QuantFormat:
    """One number format; subclass it with its numbers and it is registered.

    name         as ggml spells it, the class's name
    ggml_id      its tensor type in GGUF files, NOT_GGML for formats that only Hugging Face folders have
    values       numbers per block
    nbytes       bytes per block
    activation   the activation numbers `linear` uses with such a weight: "float", "int8/32" (int8 with one scale per
                 32 values), or "int8/256". "float" also while no back-end has kernels that multiply its integers:
                 back-ends then widen the weight
    words        (offset, width) of each number in a block that is wider than a byte
    weighted     whether `quantize` heeds weights: the other formats have one way to round a block
    can_quantize whether `quantize` can make its blocks
    """

    name: ClassVar[str]
    ggml_id: ClassVar[int]
    values: ClassVar[int]
    nbytes: ClassVar[int]
    activation: ClassVar[str]
    words: ClassVar[tuple[tuple[int, int], ...]]
    weighted: ClassVar[bool]
    can_quantize: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        ggml_id: int = NOT_GGML,
        values: int,
        nbytes: int,
        activation: str = "int8/32",
        words: tuple[tuple[int, int], ...] = ((0, 2),),
        weighted: bool = False,
    ) -> None:
        cls.name, cls.ggml_id, cls.values, cls.nbytes = cls.__name__, ggml_id, values, nbytes
        cls.activation, cls.words, cls.weighted = activation, words, weighted
        cls.can_quantize = "quantize" in vars(cls)
        if cls.name in (FORMATS | FOLDER_FORMATS) or any(other.ggml_id == ggml_id for other in FORMATS.values()):
            raise OpError(f"number format {cls.name} ({ggml_id}) is registered already")
        (FOLDER_FORMATS if ggml_id == NOT_GGML else FORMATS)[cls.name] = cls

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The values of blocks: uint8 [n, nbytes] -> float32 [n, values]. Every format says how."""
        raise OpError("this number format does not say how its blocks are read; give it a `dequantize`")

    @staticmethod
    def weigh(rows: NDArray[np.float32], importance: NDArray[np.float32]) -> NDArray[np.float32]:
        """How much the error of each value counts: rows float32 [n, width], importance float32 [width] of their
        columns -> float32 [n, width], perhaps a read-only view. Here the importance itself: most formats look at the
        values of a block alone to make more of it."""
        return np.broadcast_to(importance, rows.shape)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        """The blocks of values, rounded as ggml does: float32 [n, values] -> uint8 [n, nbytes].

        `weights`, float32 [n, values], is what `weigh` gives; formats that are not `weighted` leave it aside. Raises
        OpError for a format that is only read: those with code books are made with an importance matrix by
        whoever writes them, integers hold no weights.
        """
        raise OpError(f"values cannot be rounded to this number format, it is only read; {_instead()}")

    @classmethod
    def swapped(cls, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A copy of blocks, uint8 [n, nbytes], with the byte order of every multi-byte number reversed."""
        result = blocks.copy()
        for offset, width in cls.words:
            result[:, offset : offset + width] = blocks[:, offset : offset + width][:, ::-1]
        return result

    @classmethod
    def tensor_nbytes(cls, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this logical shape. Raises OpError if its rows are not whole blocks."""
        width = shape[-1] if len(shape) else 1
        if width % cls.values:
            raise OpError(f"{cls.name} stores {cls.values} values per block: rows of {width} values do not fit")
        return prod(shape) // cls.values * cls.nbytes


FORMATS: dict[str, type[QuantFormat]] = {}  # ggml's types
FOLDER_FORMATS: dict[str, type[QuantFormat]] = {}  # those that only Hugging Face folders have


def _instead() -> str:
    """What to take for a format that is only read, for messages."""
    able = sorted((other for other in FORMATS.values() if other.can_quantize), key=lambda other: other.ggml_id)
    return f"take one of {', '.join(other.name for other in able)}"


def inverse_or_zero(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / scale in float32, and 0 where that is not finite: such a scale is stored as 0 and decides alone."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def format_of(name_or_ggml_id: str | int) -> type[QuantFormat]:
    """The format with this name ("Q4_1", any case) or ggml type id. Raises UnsupportedModel for any other."""
    if isinstance(name_or_ggml_id, str):
        name = name_or_ggml_id.upper()
        found = FORMATS.get(name) or FOLDER_FORMATS.get(name)
        asked = repr(name_or_ggml_id)
    else:
        found = next((f for f in FORMATS.values() if f.ggml_id == name_or_ggml_id), None)
        asked = ggml_type_name(name_or_ggml_id)
    if found is None:
        raise UnsupportedModel(f"number format {asked} is not supported yet; supported: {supported_names()}")
    return found


def supported_names() -> str:
    """The names of all registered formats, in the order of their ids, for messages."""
    return ", ".join(sorted(FORMATS, key=lambda name: FORMATS[name].ggml_id))


def dequantize_tensor(
    number_format: type[QuantFormat], blocks: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]:
    """The values of a whole tensor: contiguous uint8 blocks of any shape -> float32 of the logical `shape`.

    Works in chunks, so that the memory used beyond the result is bounded. Raises OpError if the sizes do not match.
    """
    expected = number_format.tensor_nbytes(shape)
    if blocks.dtype != np.uint8 or blocks.size != expected:
        raise OpError(
            f"{number_format.name} {list(shape)} needs {expected} uint8 bytes, got {blocks.size} {blocks.dtype}"
        )
    source = blocks.reshape(-1, number_format.nbytes)
    result = np.empty((len(source), number_format.values), np.float32)
    step = max(1, CHUNK_VALUES // number_format.values)
    with np.errstate(
        invalid="ignore"
    ):  # a damaged file may hold infinite scales: they become NaN, which loaders look for
        for start in range(0, len(source), step):
            result[start : start + step] = number_format.dequantize(source[start : start + step])
    return result.reshape(tuple(shape))


def quantize_tensor(
    number_format: type[QuantFormat],
    values: NDArray[np.floating],
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """The blocks of a whole tensor, row-major: floats of any shape -> uint8 [n, nbytes], in bounded chunks.

    `importance` says how much the errors of each column count (the mean square of the activations it is multiplied
    with): float32 [width], or [experts, width] for values [experts, rows, width]. Formats that are not `weighted`
    leave it aside.

    Raises OpError if the rows are not whole blocks, if NaN or infinity would have to share a scale with others, if the
    importance does not fit, or for a format that is only read.
    """
    check_can_quantize(number_format)
    total = number_format.tensor_nbytes(values.shape)
    result = np.empty((total // number_format.nbytes, number_format.nbytes), np.uint8)
    if importance is not None:
        check_importance(importance, values.shape)
        if number_format.weighted:
            _quantize_rows(number_format, values, importance, result)
            return result
    source = values.reshape(-1, number_format.values)
    step = max(1, CHUNK_VALUES // number_format.values)
    for start in range(0, len(source), step):
        chunk = _finite(number_format, source[start : start + step], start)
        result[start : start + step] = number_format.quantize(chunk)
    return result


def _quantize_rows(
    number_format: type[QuantFormat],
    values: NDArray[np.floating],
    importance: NDArray[np.float32],
    result: NDArray[np.uint8],
) -> None:
    """Write the blocks of values to `result`, whole rows at a time, each expert with its own importance."""
    width = values.shape[-1]
    experts = importance.reshape(-1, width)
    blocks = width // number_format.values
    if not values.size:
        return
    rows = values.reshape(len(experts), -1, width)
    step = max(1, CHUNK_VALUES // width)
    at = 0
    for weights, part in zip(experts, rows, strict=True):
        for start in range(0, len(part), step):
            chunk = _finite(number_format, part[start : start + step], at)
            weighed = number_format.weigh(chunk, weights).reshape(-1, number_format.values)
            made = number_format.quantize(chunk.reshape(-1, number_format.values), weighed)
            result[at : at + len(made)] = made
            at += len(chunk) * blocks


def _finite(number_format: type[QuantFormat], values: NDArray[np.floating], start: int) -> NDArray[np.float32]:
    """The values as contiguous float32. Raises OpError if a format whose values share a scale cannot hold one."""
    chunk = np.ascontiguousarray(values, np.float32)
    if number_format.values > 1 and not np.isfinite(chunk).all():
        raise OpError(f"{number_format.name} cannot hold NaN or infinity; blocks {start} and on have one")
    return chunk


def check_can_quantize(number_format: type[QuantFormat]) -> None:
    """Raise OpError for a format that is only read."""
    if not number_format.can_quantize:
        reason = "holds integers" if number_format.values == 1 else "is made with an importance matrix, elsewhere"
        raise OpError(f"values cannot be rounded to {number_format.name}: it {reason}, and only read; {_instead()}")


def check_importance(importance: NDArray[np.float32], shape: Sequence[int]) -> None:
    """Raise OpError unless importance fits a tensor of this shape and holds finite numbers that are not negative."""
    fits = [tuple(shape[-1:])] + [(shape[0], shape[-1])] * (len(shape) == 3)
    if importance.dtype != np.float32 or importance.shape not in fits:
        wanted = " or ".join(str(list(fit)) for fit in fits)
        raise OpError(
            f"the importance of a tensor {list(shape)} must be float32 {wanted}, not {importance.dtype}"
            f" {list(importance.shape)}"
        )
    odd = ~(np.isfinite(importance) & (importance >= 0))
    if odd.any():
        place = np.unravel_index(int(odd.argmax()), importance.shape)
        raise OpError(
            f"the importance of column {place[-1]} is {importance[place]}; it must be finite and not below 0: the"
            " matrix is damaged, compute it again"
        )
