"""The ViT of CLIP and SigLIP, on which the towers of several families are based."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, Embedding, LayerNorm
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.params import Param
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower, add_positions
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput, make_spans

CLASS: Final = "class_row"
CLASSES: Final = "classes"  # int32 [rows]: 0 for the class embedding, -1 for a patch
POSITIONS: Final = "positions"  # int32 [rows]


@dataclass(frozen=True, kw_only=True)
class VitConfig(TowerConfig):
    """The fields of these towers.

    has_class_row   CLIP: a class embedding before each tile's patches, a norm before the first layer, and no bias in
                    the patch embedding
    """

    has_class_row: bool = True

    @property
    def grid(self) -> int:
        """The number of patches along a side."""
        return self.image_size // self.patch

    @property
    def tile_rows(self) -> int:
        """The number of rows of a tile, including its class embedding."""
        return self.grid**2 + self.has_class_row


Config = TypeVar("Config", bound=VitConfig)


class VitTower(Tower[Config]):
    """CLIP's ViT (Radford et al. 2021) or SigLIP's (Zhai et al. 2023), with learned positions. Each tile has
    the size for which they were learned."""

    def __init__(self, config: Config) -> None:
        self.has_patch_bias = not config.has_class_row
        super().__init__(config)
        self.class_row = Param(CLASS, (1, config.width), plain=True)
        self.positions = Embedding("positions", config.tile_rows, config.width)
        self.first_norm = LayerNorm("first_norm", config.width, config.eps)

    def layer(self, config: Config, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        return TowerLayer(norms[0], TowerAttention(name, config), norms[1], MLP(name, config, config.activation))

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [self.positions, *([self.first_norm] if self.config.has_class_row else [])]

    def params(self) -> list[Param]:
        return [*super().params(), *([self.class_row] if self.config.has_class_row else [])]

    def patch_order(self) -> NDArray[np.int64] | None:
        """Return the order in which the patches of a tile are computed; None: row-major."""
        return None

    @property
    def added_rows(self) -> int:
        return int(self.config.has_class_row)

    def tile_starts(self, image: ImageInput) -> NDArray[np.int64]:
        """Return the first row of each tile, then the number of rows: int64 [tiles + 1]."""
        return np.arange(len(image.grids) + 1) * self.config.tile_rows

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Add a row before each tile for the class embedding, if the tower has one."""
        tiles, rows, has_class = len(image.grids), self.config.tile_rows, self.config.has_class_row
        order, grid = self.patch_order(), self.config.grid
        assert all(each == (1, grid, grid) for each in image.grids), image.grids
        patches = image.patches.reshape(tiles, grid**2, -1)
        positions = np.arange(rows, dtype=np.int32)
        if order is not None:
            patches = patches[:, order]
            positions[has_class:] = order + has_class
        spans = make_spans(self.tile_starts(image)).repeat(rows, axis=0)
        arrays: dict[str, NDArray[Any]] = {SPANS: spans, POSITIONS: np.tile(positions, tiles)}
        if has_class:
            patches = np.pad(patches, ((0, 0), (1, 0), (0, 0)))
            arrays[CLASSES] = np.where(arrays[POSITIONS] > 0, -1, 0).astype(np.int32)
        return {"patches": np.ascontiguousarray(patches.reshape(tiles * rows, -1)), **arrays}

    def embed_arrays(self) -> tuple[str, ...]:
        return ("patches", POSITIONS, *([CLASSES] if self.config.has_class_row else []))

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        x = self.patches(arrays["patches"], weights)
        if not self.config.has_class_row:
            return add_positions(x, weights["positions.weight"], arrays[POSITIONS])
        x = ops.replace_rows(x, weights[CLASS], arrays[CLASSES])
        return self.first_norm(add_positions(x, weights["positions.weight"], arrays[POSITIONS]), weights)
