"""Idefics3's and SmolVLM's tower: SigLIP's ViT for tiles of any shape, and a projector of squares of patches
(Laurençon et al. 2024, Marafioti et al. 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.models.blocks import Linear
from sporelm.models.blocks.layer_norm import SharedHeadLayerNorm
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.vit_tower import POSITIONS, VitConfig, VitTower


def bucket_positions(height: int, width: int, side: int) -> NDArray[np.int64]:
    """Return the index of the learned position, of `side` x `side`, for each patch of a grid, rounded down: int64
    [height * width].

    Patch i of n lies at i / n of a side (Dehghani et al. 2023, NaViT). The quotient is exact here, as in llama.cpp's
    clip.cpp. PyTorch rounds it, and for a few sizes takes the one before, depending on the CPU's vector width: of 70
    positions for 25, 49, 50 or 55 patches; of 26, 27 or 32, as Idefics3 and SmolVLM have them, for none.
    """
    rows, columns = (np.arange(count) * side // count for count in (height, width))
    return (rows[:, None] * side + columns).reshape(-1)


def merge_order(height: int, width: int, merge: int) -> NDArray[np.int64]:
    """Return the row-major indices of a grid's patches, grouped by `merge` x `merge` squares: int64 [height * width].
    Both sides are multiples of `merge`."""
    numbers = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)


@tower("idefics3", VitConfig)
class Idefics3Tower(VitTower[VitConfig]):
    """A tile's patches are reordered so that those of one row of the projector are adjacent, row by row.

    That is the pixel shuffle of transformers: columns of the projector are (y, x, width) of a square.
    """

    def __init__(self, config: VitConfig) -> None:
        super().__init__(config)
        self.last_norm = SharedHeadLayerNorm("last_norm", config.width, config.eps)
        self.projector = Linear("projector", config.out_width, config.merge**2 * config.width)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*super().blocks, self.last_norm, self.projector]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        merge, grid = self.config.merge, self.config.grid
        positions = [bucket_positions(height, width, grid) for _, height, width in image.grids]
        orders = [merge_order(height, width, merge) for _, height, width in image.grids]
        order = np.concatenate([start + each for start, each in zip(image.tile_starts()[:-1], orders, strict=True)])
        return {
            "patches": np.ascontiguousarray(image.patches[order]),
            POSITIONS: np.concatenate(positions)[order].astype(np.int32),
            SPANS: Tower.prepare(self, image, host)[SPANS],
        }

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.projector(self.last_norm(x, weights), weights)
