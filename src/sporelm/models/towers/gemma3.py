"""Gemma 3's tower: SigLIP's ViT, whose rows are pooled in squares, normalized and projected (Gemma team 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import LayerNorm, Linear, RMSNorm
from sporelm.models.tower import Arrays, ParameterOwner, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.vit_tower import VitConfig, VitTower

FIRSTS: Final = "firsts"
STOPS: Final = "stops"


@dataclass(frozen=True, kw_only=True)
class Gemma3TowerConfig(VitConfig):
    """The fields of Gemma 3's tower. `merge` is the side of the squares of patches that are averaged."""

    has_class_row: bool = False
    activation: str = "gelu_tanh"

    @property
    def tile_outputs(self) -> int:
        """The number of image rows for one tile."""
        return (self.grid // self.merge) ** 2


@tower("gemma3", Gemma3TowerConfig)
class Gemma3Tower(VitTower[Gemma3TowerConfig]):
    """The patches of each square that is averaged are adjacent."""

    def __init__(self, config: Gemma3TowerConfig) -> None:
        super().__init__(config)
        self.last_norm = LayerNorm("last_norm", config.width, config.eps)
        self.projector_norm = RMSNorm("projector_norm", config.width, config.eps)
        self.projector = Linear("projector", config.out_width, config.width)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*super().blocks, self.last_norm, self.projector_norm, self.projector]

    def patch_order(self) -> NDArray[np.int64]:
        """Return the patches of the squares, row by row, then the patches at the edges that belong to no square."""
        grid, merge = self.config.grid, self.config.merge
        side = grid // merge
        numbers = np.arange(grid**2).reshape(grid, grid)
        squares = numbers[: side * merge, : side * merge].reshape(side, merge, side, merge).swapaxes(1, 2).reshape(-1)
        return np.concatenate([squares, np.setdiff1d(numbers, squares)])

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        squares = np.arange(self.config.tile_outputs) * self.config.merge**2
        firsts = (self.tile_starts(image)[:-1, None] + squares).reshape(-1).astype(np.int32)
        return {**super().prepare(image, host), FIRSTS: firsts, STOPS: firsts + np.int32(self.config.merge**2)}

    def stages(self) -> list[TowerStage]:
        last = TowerStage(self._normalize, ("x",))
        return [*self.layer_stages(), last, TowerStage(self._pool, (FIRSTS, STOPS), ("x",))]

    def _normalize(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"x": self.last_norm(arrays["x"], weights)}

    def _pool(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"rows": self.project(ops.mean_rows(arrays["x"], arrays[FIRSTS], arrays[STOPS]), weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.projector(self.projector_norm(x, weights), weights)
