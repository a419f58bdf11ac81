"""CLIP's image encoder: a ViT, whose class embedding becomes the vector of a picture (Radford et al. 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import LayerNorm, Linear
from sporelm.models.tower import Arrays, ParameterOwner, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.vit_tower import VitConfig, VitTower

POOLED_ROWS: Final = "pooled_rows"  # int32 [tiles]: the row of each tile's class embedding


@dataclass(frozen=True, kw_only=True)
class ClipTowerConfig(VitConfig):
    """The fields of CLIP's image encoder. `has_projection`: the vector is projected into the space of texts, too."""

    has_projection: bool = True


@tower("clip", ClipTowerConfig)
class ClipTower(VitTower[ClipTowerConfig]):
    """One row for each picture: its class row, normalized and projected."""

    is_encoder = True

    def __init__(self, config: ClipTowerConfig) -> None:
        super().__init__(config)
        self.last_norm = LayerNorm("last_norm", config.width, config.eps)
        self.projection = Linear("projection", config.out_width, config.width) if config.has_projection else None

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        last: list[ParameterOwner] = [self.last_norm]
        return [*super().blocks, *last, *([self.projection] if self.projection else [])]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        return {**super().prepare(image, host), POOLED_ROWS: self.tile_starts(image)[:-1].astype(np.int32)}

    def stages(self) -> list[TowerStage]:
        return [*self.layer_stages(), TowerStage(self._pool, (POOLED_ROWS,), ("x",))]

    def _pool(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        return {"rows": self.project(ops.select_rows(arrays["x"], arrays[POOLED_ROWS]), weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        x = self.last_norm(x, weights)
        return x if self.projection is None else self.projection(x, weights)
