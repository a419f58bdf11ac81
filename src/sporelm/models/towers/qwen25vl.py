"""Qwen2.5-VL's tower: that of Qwen2-VL with RMS norms, gates, and windows in most layers (Bai et al. 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.models.blocks import GatedMLP, RMSNorm
from sporelm.models.blocks.tower_layer import TowerLayer
from sporelm.models.tower import SPANS
from sporelm.models.tower_inputs import ImageInput, make_spans
from sporelm.models.tower_registry import tower
from sporelm.models.towers.qwen2vl import POSITIONS, Merger, QwenTower, QwenTowerConfig

WINDOWS: Final = "windows"  # int32 [patches, 2]: the rows of each patch's window


@dataclass(frozen=True, kw_only=True)
class Qwen25VLTowerConfig(QwenTowerConfig):
    """The fields of Qwen2.5-VL's tower. In layers outside `full_layers`, rows attend within their window.

    window_size   side of a window, in pixels; rounded down to whole squares of merged patches
    """

    window_size: int = 112

    @property
    def window_side(self) -> int:
        """The side of a window, in squares of merged patches."""
        return self.window_size // self.merge // self.patch


@tower("qwen25vl", Qwen25VLTowerConfig)
class Qwen25VLTower(QwenTower):
    """The patches of a window are adjacent. The rows of the prompt are restored to row-major order at the end."""

    row_arrays = (POSITIONS, WINDOWS)
    config: Qwen25VLTowerConfig

    def layer(self, config: QwenTowerConfig, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        mlp = GatedMLP(name, config, config.activation)
        spans = SPANS if index in config.full_layers else WINDOWS
        return TowerLayer(norms[0], self.attention(config, index), norms[1], mlp, spans=spans)

    def projector(self, config: QwenTowerConfig) -> Merger:
        return Merger("projector", config, RMSNorm("projector_norm", config.width, config.eps))

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        arrays, unit = super().prepare(image, host), self.config.merge**2
        order, sizes = self._windows(image)
        rows = (order[:, None] * unit + np.arange(unit)).reshape(-1)
        arrays |= {name: np.ascontiguousarray(array[rows]) for name, array in arrays.items() if name != SPANS}
        starts = np.concatenate([[0], np.cumsum(sizes * unit)])
        return {**arrays, WINDOWS: make_spans(starts).repeat(sizes * unit, axis=0)}

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        return rows[np.argsort(self._windows(image)[0])]

    def _windows(self, image: ImageInput) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the squares in window order, int64 [squares], and the size of each window, int64 [windows]."""
        merge, side = self.config.merge, self.config.window_side
        orders, sizes, first = [], [], 0
        for time, height, width in image.grids:
            count = (height // merge) * (width // merge)
            frame_order, frame_sizes = window_order(height // merge, width // merge, side)
            for frame in range(time):
                orders.append(first + frame * count + frame_order)
                sizes.append(frame_sizes)
            first += time * count
        return np.concatenate(orders), np.concatenate(sizes)


def window_order(height: int, width: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cells of a grid in window order, int64 [cells], and the size of each window in cells, int64 [windows].

    Windows have `side` by `side` cells, fewer at the right and lower edges. Windows, and the cells of each, are
    row-major.
    """
    rows, columns = np.indices((height, width)).reshape(2, -1)
    window = rows // side * -(-width // side) + columns // side
    return np.argsort(window, kind="stable"), np.bincount(window)
