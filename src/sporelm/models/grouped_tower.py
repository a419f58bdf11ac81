"""A ViT with a class embedding, whose projector reads squares of patches and not the class row (InternVL, CogVLM)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.bicubic import resize_bicubic
from sporelm.models.params import Param
from sporelm.models.tower import SPANS, Arrays, Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput

CLASS: Final = "class_row"
POSITIONS: Final = "positions.weight"


@dataclass(frozen=True, kw_only=True)
class GroupedTowerConfig(TowerConfig):
    """The fields of these towers. `image_size` is the side of a tile.

    grid_side    patches along a side of the pictures for which positions were learned
    transposed   the squares of a tile are in column-major order
    """

    grid_side: int
    transposed: bool = False

    @property
    def tile_rows(self) -> int:
        """The number of squares of a tile."""
        return (self.image_size // self.patch // self.merge) ** 2


Config = TypeVar("Config", bound=GroupedTowerConfig)


class GroupedTower(Tower[Config]):
    """The patches of each `merge` x `merge` square are adjacent, as pixel shuffle or a convolution joins them.

    The class row follows the patches of its tile, padded to a whole group; that group is projected too and dropped
    at the end.
    """

    host_weights: tuple[str, ...] = (POSITIONS,)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.class_row = Param(CLASS, (1, config.width), plain=True)
        self.positions = Param(POSITIONS, (config.grid_side**2 + 1, config.width), plain=True)

    def params(self) -> list[Param]:
        return [*super().params(), self.class_row, self.positions]

    @property
    def added_rows(self) -> int:
        """The number of rows in the class row's group."""
        return self.config.merge**2

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Order the patches of each tile by square, and append its class row."""
        starts, extra = image.tile_starts(), self.added_rows
        begins = starts + extra * np.arange(len(starts))
        rows = np.zeros((begins[-1], image.patches.shape[1]), np.float32)
        positions = np.zeros((begins[-1], self.config.width), np.float32)
        classes = np.full(begins[-1], -1, np.int32)
        spans = np.empty((begins[-1], 2), np.int32)
        for first, begin, (_, height, width) in zip(starts, begins, image.grids, strict=False):
            end, order = begin + height * width, self._order(height, width)
            rows[begin:end] = image.patches[first + order]
            positions[begin:end] = self._grid_positions(host[POSITIONS], height, width)[order]
            positions[end], classes[end] = host[POSITIONS][0], 0
            spans[begin : end + extra] = begin, end + 1
        return {"patches": rows, "position_rows": positions, "classes": classes, SPANS: spans}

    def embed_arrays(self) -> tuple[str, ...]:
        return ("patches", "position_rows", "classes")

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        x = ops.replace_rows(self.patches(arrays["patches"], weights), weights[CLASS], arrays["classes"])
        return ops.add(x, arrays["position_rows"])

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Drop the class row, the last row of each tile."""
        counts = np.diff(image.tile_starts()) // self.config.merge**2 + 1
        return np.delete(rows, np.cumsum(counts) - 1, axis=0)

    def _order(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the row-major indices of a tile's patches, in the order in which the tower computes them."""
        merge = self.config.merge
        squares = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
        return squares.transpose((2, 0, 1, 3) if self.config.transposed else (0, 2, 1, 3)).reshape(-1)

    def _grid_positions(self, table: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
        """Return the position embeddings of a grid of patches, row-major: float32 [height * width, tower width]."""
        side = self.config.grid_side
        return resize_bicubic(table[1:].reshape(side, side, -1), height, width).reshape(height * width, -1)
