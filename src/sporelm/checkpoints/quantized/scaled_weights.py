"""Weights of eight-bit floats or signed integers, with a float scale for each tile.

A tile is the whole weight, a row, a row's group of columns, or a rectangle such as 128x128 (DeepSeek-V3's technical
report, section 3.3): value = number * scale of its tile.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.groups import WIDENED, ColumnBlocks, assign_groups, cut_blocks
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


def assemble_scaled(parts: Parts, name: str, scale_name: str | None, tile: Tile | None = None) -> AssembledWeight:
    """Return the weight `name` [out, in] with its scales; without any, they are 1.

    tile   of the configuration

    Raises ModelFileError for scales that do not fit, UnsupportedModel for a weight that is not a matrix.
    """
    info = parts.info(name)
    if len(info.shape) != 2 or not all(info.shape):
        raise UnsupportedModel(f"{parts.where}: {quote(name)} is {list(info.shape)}; scaled weights must be matrices")
    out, width = info.shape
    stored = parts.read_array(name, tuple(FORMS), (out, width)).view(np.uint8)
    size = (
        _find_tile(parts, scale_name, out, width, tile) if scale_name is not None else Tile(max(1, out), max(1, width))
    )
    _read_scales(parts, scale_name, out, width, size)  # reject scales that are not floats on opening, not on first use
    columns = cut_blocks(assign_groups(width, size.columns))
    form, stored_format = FORMS[info.type_name], format_of(info.type_name)
    chosen = F32 if columns.size == 1 else format_of(f"{form}_{columns.size}")

    def rows(start: int, stop: int) -> Bytes:
        tiles = np.arange(start, stop) // size.rows
        scales = _read_scales(parts, scale_name, out, width, size)[tiles]
        return _to_blocks(chosen, stored_format, np.ascontiguousarray(stored[start:stop]), scales, columns)

    note = f"their tiles are not multiples of 32 columns; {WIDENED}" if chosen is F32 else ""
    return AssembledWeight(name, chosen, (out, width), (name, *([scale_name] if scale_name else [])), rows, note)


def _find_tile(parts: Parts, name: str, out: int, width: int, tile: Tile | None) -> Tile:
    """Return the tile of the scales, by their shape."""
    shape = parts.info(name).shape
    single = Tile(max(1, out), max(1, width))
    if len(shape) == 2 and tile is not None and shape == (-(-out // tile.rows), -(-width // tile.columns)):
        return tile
    if shape in ((), (1,), (1, 1)):
        return single
    if shape in ((out,), (out, 1)):
        return Tile(1, single.columns)
    if len(shape) == 2 and tile is None and shape[0] == out and shape[1] and width % shape[1] == 0:
        return Tile(1, width // shape[1])
    tiles = f" in tiles of {tile.rows}x{tile.columns}" if tile else ""
    raise ModelFileError(
        f"{parts.where}: {quote(name)} is {list(shape)}, which does not fit a weight of {[out, width]}{tiles}"
    )


def _read_scales(parts: Parts, name: str | None, out: int, width: int, tile: Tile) -> NDArray[np.float32]:
    """Return the scales, float32 [tiles of rows, tiles of columns]."""
    if name is None:
        return np.ones((1, 1), np.float32)
    shape = parts.info(name).shape
    return parts.read_floats(name, shape).reshape(-(-out // tile.rows), -(-width // tile.columns))


def _to_blocks(
    chosen: type[QuantFormat],
    stored_format: type[QuantFormat],
    stored: Bytes,
    scales: NDArray[np.float32],
    columns: ColumnBlocks,
) -> Bytes:
    """Return rows as blocks: bytes [rows, in] and scales [rows, groups] -> uint8 [rows, bytes a row]."""
    scale = np.ascontiguousarray(scales[:, columns.group])
    if chosen is F32:
        with np.errstate(invalid="ignore", over="ignore"):
            values = stored_format.dequantize(stored.reshape(-1, 1)).reshape(stored.shape) * scale
        return values.astype("<f4").view(np.uint8)
    head = scale.reshape(-1, 1).astype("<f4").view(np.uint8)
    return np.concatenate([head, stored.reshape(-1, chosen.values)], axis=1).reshape(len(stored), -1)
