"""Weights of eight-bit numbers as they are, floats or signed integers, with a float scale for a tile of them.

A tile is the whole weight, a row, a row's group of columns, or a rectangle such as 128x128 (DeepSeek-V3's technical
report, section 3.3): value = number * scale of its tile.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.quantized.assembled import Assembled
from sporelm.checkpoints.quantized.groups import WIDENED, ColumnBlocks, cut, even_groups
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, QuantFormat, format_of

Bytes = NDArray[np.uint8]
FORMS = {"F8_E4M3": "F8_E4M3", "F8_E5M2": "F8_E5M2", "I8": "INT8"}


class Tile(NamedTuple):
    """Rows and columns that share a scale."""

    rows: int
    columns: int


def scaled(parts: Parts, name: str, scale_name: str | None, tile: Tile | None = None) -> Assembled:
    """The weight `name` [out, in] with its scales; without any, they are 1. `tile` is what the configuration says.

    Raises ModelFileError for scales that do not fit, UnsupportedModel for a weight that is no matrix.
    """
    info = parts.info(name)
    if len(info.shape) != 2 or not all(info.shape):
        raise UnsupportedModel(f"{parts.where}: {quote(name)} is {list(info.shape)}; scaled weights must be matrices")
    out, width = info.shape
    held = parts.array(name, tuple(FORMS), (out, width)).view(np.uint8)
    size = _tile(parts, scale_name, out, width, tile) if scale_name is not None else Tile(max(1, out), max(1, width))
    _scales(parts, scale_name, out, width, size)  # what is no float is told now, not when the weight is needed
    columns = cut(even_groups(width, size.columns))
    form, plain = FORMS[info.type_name], format_of(info.type_name)
    chosen = F32 if columns.size == 1 else format_of(f"{form}_{columns.size}")

    def rows(start: int, stop: int) -> Bytes:
        tiles = np.arange(start, stop) // size.rows
        scales = _scales(parts, scale_name, out, width, size)[tiles]
        return _blocks(chosen, plain, np.ascontiguousarray(held[start:stop]), scales, columns)

    note = f"their scales stand for no runs of 32 columns; {WIDENED}" if chosen is F32 else ""
    return Assembled(name, chosen, (out, width), (name, *([scale_name] if scale_name else [])), rows, note)


def _tile(parts: Parts, name: str, out: int, width: int, tile: Tile | None) -> Tile:
    """The tile of the scales, by their shape."""
    shape = parts.info(name).shape
    whole = Tile(max(1, out), max(1, width))
    if len(shape) == 2 and tile is not None and shape == (-(-out // tile.rows), -(-width // tile.columns)):
        return tile
    if shape in ((), (1,), (1, 1)):
        return whole
    if shape in ((out,), (out, 1)):
        return Tile(1, whole.columns)
    if len(shape) == 2 and tile is None and shape[0] == out and shape[1] and width % shape[1] == 0:
        return Tile(1, width // shape[1])
    tiles = f" in tiles of {tile.rows}x{tile.columns}" if tile else ""
    raise ModelFileError(
        f"{parts.where}: {quote(name)} is {list(shape)}; a weight of {[out, width]}{tiles} has no such scales"
    )


def _scales(parts: Parts, name: str | None, out: int, width: int, tile: Tile) -> NDArray[np.float32]:
    """float32 [tiles of rows, tiles of columns]."""
    if name is None:
        return np.ones((1, 1), np.float32)
    shape = parts.info(name).shape
    return parts.floats(name, shape).reshape(-(-out // tile.rows), -(-width // tile.columns))


def _blocks(
    chosen: type[QuantFormat], plain: type[QuantFormat], held: Bytes, scales: NDArray[np.float32], columns: ColumnBlocks
) -> Bytes:
    """Rows as blocks: bytes [rows, in] and scales [rows, groups] -> uint8 [rows, bytes a row]."""
    scale = np.ascontiguousarray(scales[:, columns.group])
    if chosen is F32:
        with np.errstate(invalid="ignore", over="ignore"):
            values = plain.dequantize(held.reshape(-1, 1)).reshape(held.shape) * scale
        return values.astype("<f4").view(np.uint8)
    head = scale.reshape(-1, 1).astype("<f4").view(np.uint8)
    return np.concatenate([head, held.reshape(-1, chosen.values)], axis=1).reshape(len(held), -1)
