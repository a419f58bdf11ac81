"""InternVL's tower: InternViT (Chen et al. 2024), pixel shuffle, and a projector of two layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.bicubic import resize_bicubic
from sporelm.models.blocks import MLP, LayerNorm, Linear, RMSNorm
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.params import Param
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower

CLASS = "class_row"
POSITIONS = "positions.weight"
PROJECTOR_EPS = 1e-5  # of the projector's norm: PyTorch's default


@dataclass(frozen=True, kw_only=True)
class InternVLTowerConfig(TowerConfig):
    """The fields of InternVL's towers. `image_size` is the side of a tile.

    grid_side        patches along a side of the pictures for which positions were learned
    rms_norms        the layers have RMS norms (InternViT-6B), not layer norms
    qk_eps           queries and keys have RMS norms over all heads, with this epsilon; 0: they have none
    transposed       rows of the projector follow one another down the columns of a tile (ps_version "v1")
    projector_act    the activation between the projector's layers
    min_tiles        least number of tiles into which a picture is cut
    max_tiles        the largest
    has_thumbnail    a picture that is cut has its whole at the size of a tile behind its tiles
    """

    grid_side: int
    rms_norms: bool = False
    qk_eps: float = 0.0
    transposed: bool = False
    projector_act: str = "gelu"
    min_tiles: int = 1
    max_tiles: int = 12
    has_thumbnail: bool = True

    @property
    def tile_rows(self) -> int:
        """The number of rows of a tile behind the projector."""
        return (self.image_size // self.patch // self.merge) ** 2


@tower("internvl", InternVLTowerConfig)
class InternVLTower(Tower[InternVLTowerConfig]):
    """A ViT with LayerScale (Touvron et al. 2021) and a class embedding, whose row the projector does not read.

    Squares of `merge` patches a side stand side by side, as pixel shuffle joins them. The class row stands behind the
    patches of its tile, with rows that fill up its group; they are projected too and dropped at the end.
    """

    host_weights = (POSITIONS,)

    def __init__(self, config: InternVLTowerConfig) -> None:
        super().__init__(config)
        self.class_row = Param(CLASS, (1, config.width), plain=True)
        self.positions = Param(POSITIONS, (config.grid_side**2 + 1, config.width), plain=True)
        joined = config.width * config.merge**2
        self.projector_norm = LayerNorm("projector_norm", joined, PROJECTOR_EPS)
        self.up = Linear("projector_up", config.out_width, joined, bias=True)
        self.down = Linear("projector_down", config.out_width, config.out_width, bias=True)

    def layer(self, config: InternVLTowerConfig, index: int) -> TowerLayer:
        name, kind = f"layers.{index}", RMSNorm if config.rms_norms else LayerNorm
        norms = [kind(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        whole = [RMSNorm(f"{name}.attn_{part}_norm", config.width, config.qk_eps) for part in "qk"]
        attention = TowerAttention(name, config, norms=(whole[0], whole[1]) if config.qk_eps else None)
        return TowerLayer(norms[0], attention, norms[1], MLP(name, config, config.activation), scales=name)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [self.projector_norm, self.up, self.down]

    def params(self) -> list[Param]:
        return [*super().params(), self.class_row, self.positions]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Put the patches of a tile into the order of pixel shuffle, and its class row behind them."""
        starts, extra = image.tile_starts(), self.config.merge**2  # rows behind the patches of a tile
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

    def project(self, x: Any, weights: Arrays) -> Any:
        inner = self.up(self.projector_norm(x, weights), weights)
        return self.down(ops.activate(inner, kind=self.config.projector_act), weights)

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Drop the row of each class embedding, the last one of a tile."""
        counts = np.diff(image.tile_starts()) // self.config.merge**2 + 1
        return np.delete(rows, np.cumsum(counts) - 1, axis=0)

    def _order(self, height: int, width: int) -> NDArray[np.int64]:
        """Return the numbers of a tile's patches, row by row, in the order of the tower."""
        merge = self.config.merge
        squares = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
        return squares.transpose((2, 0, 1, 3) if self.config.transposed else (0, 2, 1, 3)).reshape(-1)

    def _grid_positions(self, table: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
        """Return the position embeddings of a grid of patches, row by row: float32 [height * width, width of the
        tower]."""
        side = self.config.grid_side
        return resize_bicubic(table[1:].reshape(side, side, -1), height, width).reshape(height * width, -1)
