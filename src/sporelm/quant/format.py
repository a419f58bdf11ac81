"""The base class of number formats, and the registry of supported formats.

A format defines how `values` numbers are packed into a block of `nbytes` bytes. Multi-byte numbers inside a block are
little-endian, as in GGUF and safetensors files; `byteswap` converts blocks of a big-endian file.
"""

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError, UnsupportedModel
from sporelm.quant.ggml_types import ggml_type_name

NOT_GGML = -1
CHUNK_VALUES = 1 << 18  # values converted at a time: temporaries stay below about 1 MiB each


class QuantFormat:
    """One number format. A subclass is registered when it is defined.

    name         ggml's spelling, which is the class name
    ggml_id      tensor type in GGUF files; NOT_GGML for formats that only Hugging Face folders have
    values       numbers per block
    nbytes       bytes per block
    activation   the activation type that `linear` uses with such a weight: "float", "int8/32" (int8 with one scale per
                 32 values), "int8/256" or "e4m3/128" (FP8 with one scale per 128 values). "float" is also used while no
                 back-end has integer kernels for the format: back-ends then widen the weight
    words        (offset, width) of each number in a block that is wider than a byte
    can_weigh    whether `quantize` uses weights; other formats have only one way to quantize a block
    can_quantize whether `quantize` is implemented
    """

    name: ClassVar[str]
    ggml_id: ClassVar[int]
    values: ClassVar[int]
    nbytes: ClassVar[int]
    activation: ClassVar[str]
    words: ClassVar[tuple[tuple[int, int], ...]]
    can_weigh: ClassVar[bool]
    can_quantize: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        ggml_id: int = NOT_GGML,
        values: int,
        nbytes: int,
        activation: str = "int8/32",
        words: tuple[tuple[int, int], ...] = ((0, 2),),
        can_weigh: bool = False,
        is_stored: bool = True,
    ) -> None:
        """`is_stored`: whether files contain this format. Other formats are not registered; a back-end packs weights in
        them on request."""
        cls.name = cls.__name__
        cls.ggml_id = ggml_id
        cls.values = values
        cls.nbytes = nbytes
        cls.activation = activation
        cls.words = words
        cls.can_weigh = can_weigh
        cls.can_quantize = "quantize" in vars(cls)
        if not is_stored:
            return
        if cls.name in (FORMATS | FOLDER_FORMATS) or any(other.ggml_id == ggml_id for other in FORMATS.values()):
            raise OpError(f"number format {cls.name} ({ggml_id}) is already registered")
        (FOLDER_FORMATS if ggml_id == NOT_GGML else FORMATS)[cls.name] = cls

    @staticmethod
    def dequantize(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the values of blocks: uint8 [n, nbytes] -> float32 [n, values]. Every format implements this."""
        raise OpError("this number format cannot be read: it lacks a `dequantize` method")

    @staticmethod
    def weigh(rows: NDArray[np.float32], importance: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how much the error of each value counts: rows float32 [n, width] and the importance of their columns,
        float32 [width] -> float32 [n, width], possibly a read-only view.

        The default is the importance itself: most formats combine it with the values of one block in `quantize`.
        """
        return np.broadcast_to(importance, rows.shape)

    @staticmethod
    def quantize(values: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
        """Quantize values as ggml does: float32 [n, values] -> uint8 [n, nbytes].

        `weights`, float32 [n, values], is the result of `weigh`; formats without `can_weigh` ignore it. Raises OpError
        for a read-only format: codebook formats need an importance matrix and another program, integer formats hold
        no weights.
        """
        raise OpError(f"this number format is read-only: values cannot be quantized to it. {_suggest_formats()}")

    @classmethod
    def byteswap(cls, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a copy of blocks, uint8 [n, nbytes], with the byte order of every multi-byte number reversed."""
        result = blocks.copy()
        for offset, width in cls.words:
            result[:, offset : offset + width] = blocks[:, offset : offset + width][:, ::-1]
        return result

    @classmethod
    def tensor_nbytes(cls, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of this logical shape. Raises OpError if its rows are not whole blocks."""
        width = shape[-1] if len(shape) else 1
        if width % cls.values:
            raise OpError(f"{cls.name} stores {cls.values} values per block: rows of {width} values do not fit")
        return prod(shape) // cls.values * cls.nbytes


FORMATS: dict[str, type[QuantFormat]] = {}  # ggml's types
FOLDER_FORMATS: dict[str, type[QuantFormat]] = {}  # formats that only Hugging Face folders have


def _suggest_formats() -> str:
    """Return the remedy for a read-only format, for messages."""
    writable = sorted((other for other in FORMATS.values() if other.can_quantize), key=lambda other: other.ggml_id)
    return f"Use one of {', '.join(other.name for other in writable)}"


def inverse_or_zero(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 / scale in float32, and 0 where that is not finite: such a scale is stored as 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def format_of(name_or_ggml_id: str | int) -> type[QuantFormat]:
    """Return the format with this name ("Q4_1", any case) or ggml type id. Raises UnsupportedModel for any other."""
    if isinstance(name_or_ggml_id, str):
        name = name_or_ggml_id.upper()
        number_format = FORMATS.get(name) or FOLDER_FORMATS.get(name)
        label = repr(name_or_ggml_id)
    else:
        number_format = next((f for f in FORMATS.values() if f.ggml_id == name_or_ggml_id), None)
        label = ggml_type_name(name_or_ggml_id)
    if number_format is None:
        raise UnsupportedModel(f"number format {label} is not supported yet; supported: {list_supported_formats()}")
    return number_format


def list_supported_formats() -> str:
    """Return the names of all registered formats, in the order of their ids, for messages."""
    return ", ".join(sorted(FORMATS, key=lambda name: FORMATS[name].ggml_id))


def dequantize_tensor(
    number_format: type[QuantFormat], blocks: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]:
    """Dequantize a whole tensor: contiguous uint8 blocks of any shape -> float32 of the logical `shape`.

    Works in chunks, which bounds the memory used beyond the result. Raises OpError if the sizes do not match.
    """
    expected = number_format.tensor_nbytes(shape)
    if blocks.dtype != np.uint8 or blocks.size != expected:
        raise OpError(
            f"{number_format.name} {list(shape)} needs {expected} uint8 bytes, got {blocks.size} {blocks.dtype}"
        )
    source = blocks.reshape(-1, number_format.nbytes)
    result = np.empty((len(source), number_format.values), np.float32)
    step = max(1, CHUNK_VALUES // number_format.values)
    with np.errstate(invalid="ignore"):  # infinite scales of a damaged file become NaN, which loaders check for
        for start in range(0, len(source), step):
            result[start : start + step] = number_format.dequantize(source[start : start + step])
    return result.reshape(tuple(shape))


def quantize_tensor(
    number_format: type[QuantFormat],
    values: NDArray[np.floating],
    importance: NDArray[np.float32] | None = None,
) -> NDArray[np.uint8]:
    """Quantize a whole tensor in row-major order: floats of any shape -> uint8 [n, nbytes], in bounded chunks.

    `importance` says how much the errors of each column count (the mean square of the activations it is multiplied
    with): float32 [width], or [experts, width] for values [experts, rows, width]. Formats without `can_weigh` ignore
    it.

    Raises OpError if the rows are not whole blocks, if NaN or infinity would share a scale with other values, if the
    importance does not fit, or for a read-only format.
    """
    check_can_quantize(number_format)
    total = number_format.tensor_nbytes(values.shape)
    result = np.empty((total // number_format.nbytes, number_format.nbytes), np.uint8)
    if importance is not None:
        check_importance(importance, values.shape)
        if number_format.can_weigh:
            _quantize_rows(number_format, values, importance, result)
            return result
    source = values.reshape(-1, number_format.values)
    step = max(1, CHUNK_VALUES // number_format.values)
    for start in range(0, len(source), step):
        chunk = _check_finite(number_format, source[start : start + step], start)
        result[start : start + step] = number_format.quantize(chunk)
    return result


def _quantize_rows(
    number_format: type[QuantFormat],
    values: NDArray[np.floating],
    importance: NDArray[np.float32],
    result: NDArray[np.uint8],
) -> None:
    """Write the blocks of values to `result` in whole rows, each expert with its own importance."""
    width = values.shape[-1]
    experts = importance.reshape(-1, width)
    blocks = width // number_format.values
    if not values.size:
        return
    rows = values.reshape(len(experts), -1, width)
    step = max(1, CHUNK_VALUES // width)
    offset = 0
    for expert_importance, expert_rows in zip(experts, rows, strict=True):
        for start in range(0, len(expert_rows), step):
            chunk = _check_finite(number_format, expert_rows[start : start + step], offset)
            weights = number_format.weigh(chunk, expert_importance).reshape(-1, number_format.values)
            quantized = number_format.quantize(chunk.reshape(-1, number_format.values), weights)
            result[offset : offset + len(quantized)] = quantized
            offset += len(chunk) * blocks


def _check_finite(number_format: type[QuantFormat], values: NDArray[np.floating], start: int) -> NDArray[np.float32]:
    """Return the values as contiguous float32. Raises OpError for NaN or infinity where values share a scale."""
    chunk = np.ascontiguousarray(values, np.float32)
    if number_format.values > 1 and not np.isfinite(chunk).all():
        raise OpError(f"{number_format.name} cannot hold NaN or infinity (found at block {start} or later)")
    return chunk


def check_can_quantize(number_format: type[QuantFormat]) -> None:
    """Raise OpError for a read-only format."""
    if not number_format.can_quantize:
        reason = "holds integers" if number_format.values == 1 else "needs an importance matrix and another program"
        raise OpError(f"{number_format.name} is read-only: it {reason}. {_suggest_formats()}")


def check_importance(importance: NDArray[np.float32], shape: Sequence[int]) -> None:
    """Raise OpError unless the importance fits a tensor of this shape and is finite and not negative."""
    allowed = [tuple(shape[-1:])] + [(shape[0], shape[-1])] * (len(shape) == 3)
    if importance.dtype != np.float32 or importance.shape not in allowed:
        expected = " or ".join(str(list(each)) for each in allowed)
        raise OpError(
            f"the importance of a tensor {list(shape)} must be float32 {expected}, not {importance.dtype}"
            f" {list(importance.shape)}"
        )
    invalid = ~(np.isfinite(importance) & (importance >= 0))
    if invalid.any():
        index = np.unravel_index(int(invalid.argmax()), importance.shape)
        raise OpError(
            f"the importance of column {index[-1]} is {importance[index]}, it must be finite and not negative: the"
            " importance matrix is damaged; compute it again"
        )
