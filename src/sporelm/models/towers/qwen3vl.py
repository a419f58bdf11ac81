"""Qwen3-VL's tower: Qwen2-VL's with additional learned positions, and with DeepStack (Bai et al. 2025)."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import isqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import LayerNorm
from sporelm.models.params import Param
from sporelm.models.tower import Arrays, ParameterOwner, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.towers.qwen2vl import Merger, Qwen2VLTower, QwenTowerConfig, merged_positions

TABLE: Final = "positions.weight"  # learned positions of a square grid, row-major
LEARNED: Final = "learned_positions"  # float32 [patches, width]


@tower("qwen3vl", QwenTowerConfig)
class Qwen3VLTower(Qwen2VLTower):
    """Each layer in `deepstack` has a merger, whose columns follow the last layer's (DeepStack, Meng et al. 2024).
    `context_length` is the number of learned positions."""

    has_patch_bias = True
    host_weights = (TABLE,)

    def __init__(self, config: QwenTowerConfig) -> None:
        super().__init__(config)
        self.table = Param(TABLE, (config.context_length, config.width), plain=True)
        self.levels = [self._level(config, f"level{index}") for index in range(len(config.deepstack))]

    def _level(self, config: QwenTowerConfig, name: str) -> Merger:
        return Merger(name, config, LayerNorm(f"{name}_norm", config.merge**2 * config.width, config.eps))

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*super().blocks, *self.levels]

    def params(self) -> list[Param]:
        return [*super().params(), self.table]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        learned = [interpolate_positions(host[TABLE], grid, self.config.merge) for grid in image.grids]
        return {**super().prepare(image, host), LEARNED: np.concatenate(learned)}

    def embed_arrays(self) -> tuple[str, ...]:
        return (*super().embed_arrays(), LEARNED)

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        return ops.add(super().embedded(arrays, weights), arrays[LEARNED])

    def stages(self) -> list[TowerStage]:
        """Return all stages. Each level is merged right after its layer, and all are joined at the end."""
        if not self.levels:
            return super().stages()
        first, *layers = self.layer_stages()
        found, names, group = [first], ["last"], self.config.merge**2
        for index, stage in enumerate(layers):
            found.append(stage)
            if index in self.config.deepstack:
                name = f"level{len(names) - 1}"
                found.append(TowerStage(_merge(self.levels[len(names) - 1], name), ("x",), group=group))
                names.append(name)
        found.append(TowerStage(_merge(self.merger, "last"), ("x",), group=group))
        return [*found, TowerStage(_join(names), tuple(names))]


def _merge(merger: Merger, name: str) -> Callable[[Arrays, Arrays], dict[str, Any]]:
    """Return the computation of a stage that runs a merger and names its output."""
    return lambda arrays, weights: {name: merger(arrays["x"], weights)}


def _join(names: Sequence[str]) -> Callable[[Arrays, Arrays], dict[str, Any]]:
    """Return the computation of a stage that concatenates the columns of these arrays: the image rows."""

    def compute(arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"rows": reduce(ops.join_columns, (arrays[name] for name in names))}

    return compute


def interpolate_positions(table: NDArray[np.float32], grid: tuple[int, int, int], merge: int) -> NDArray[np.float32]:
    """Return the learned position of each patch of a grid (time, height, width): float32 [patches, width].

    table   float32 [side ** 2, width]

    The first and the last patch of a row or a column take the table's first and last position; those between them are
    interpolated linearly in both directions. Order as in `merged_positions`.
    """
    side, positions = isqrt(len(table)), merged_positions(grid, merge)
    found = np.zeros((len(positions), table.shape[1]), np.float32)
    taps = [_taps(positions[:, axis], grid[1 + axis], side) for axis in range(2)]
    for rows, row_shares in taps[0]:
        for columns, column_shares in taps[1]:
            found += table[rows * side + columns] * (row_shares * column_shares)[:, None]
    return found


def _taps(index: NDArray[np.int32], count: int, side: int) -> tuple[tuple[NDArray[np.int64], NDArray[np.float32]], ...]:
    """Return the two neighbours of each index, scaled from `count` to `side` positions, with their weights."""
    place = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    low = np.floor(place).astype(np.int64)
    share = place - low.astype(np.float32)
    return (low, 1 - share), (np.minimum(low + 1, side - 1), share)
