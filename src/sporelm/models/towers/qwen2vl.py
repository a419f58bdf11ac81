"""Qwen2-VL's tower: a ViT with rotary positions in two dimensions, whose patches are merged in squares (Wang et al.
2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, LayerNorm, Linear
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.layer_norm import SharedHeadLayerNorm
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.params import Param
from sporelm.models.rotary import rope_table, sections
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput, make_spans
from sporelm.models.tower_registry import tower

FRAMES: Final = 2  # of a patch; a still picture is repeated
MAX_POSITIONS: Final = 1 << 14  # rows or columns of a grid: half the maximum number of patches in a picture
POSITIONS: Final = "positions"  # int32 [patches, 2]: the row and the column of each patch
ROTARY: Final = "rope"


@dataclass(frozen=True, kw_only=True)
class QwenTowerConfig(TowerConfig):
    """The configuration of the towers of Qwen's vision models. `rope_theta` is the base of their rotary positions."""

    frames: int = FRAMES
    merge: int = 2


class Merger:
    """The projector: down(gelu(up(norm(x)))) of merged patches, x [rows, merge ** 2 * width].

    norm   None: a layer norm of each patch
    """

    def __init__(self, name: str, config: TowerConfig, norm: RowBlock | None = None) -> None:
        width = config.merge**2 * config.width
        self.norm = norm or SharedHeadLayerNorm(f"{name}_norm", config.width, config.eps)
        self.up = Linear(f"{name}_up", width, width, bias=True)
        self.down = Linear(f"{name}_down", config.out_width, width, bias=True)

    def params(self) -> list[Param]:
        return [param for part in (self.norm, self.up, self.down) for param in part.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:
        return self.down(ops.activate(self.up(self.norm(x, weights), weights), kind="gelu"), weights)


class QwenTower(Tower[QwenTowerConfig]):
    """The parts that the towers of Qwen's vision models share: patches of two frames, in an order in which merged
    patches are adjacent, and rotary positions in two dimensions."""

    has_patch_bias = False
    row_arrays: tuple[str, ...] = (POSITIONS,)

    def __init__(self, config: QwenTowerConfig) -> None:
        super().__init__(config)
        values = config.patch_values // config.frames
        self.patches = Linear("patches", config.width, values, bias=self.has_patch_bias)
        self.later_patches = Linear("later_patches", config.width, values)
        self.merger = self.projector(config)

    def projector(self, config: QwenTowerConfig) -> Merger:
        """Return the projector of the last layer's rows."""
        return Merger("projector", config)

    def attention(self, config: QwenTowerConfig, index: int) -> TowerAttention:
        """Return the attention of the layer with this index."""
        quarter = config.head_dim // 4
        return TowerAttention(f"layers.{index}", config, rotary=ROTARY, streams=sections((quarter, quarter)))

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [self.later_patches, self.merger]

    def tables(self) -> dict[str, NDArray[Any]]:
        """Return the rotary table: the angles of rows and of columns have the same frequencies."""
        angles = rope_table(MAX_POSITIONS, self.config.head_dim // 2, self.config.rope_theta)
        cosines, sines = np.split(angles, 2, axis=1)
        return {ROTARY: np.concatenate([cosines, cosines, sines, sines], axis=1)}

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Return the two frames of each patch as separate arrays. Each row attends to its own frame of the grid."""
        config = self.config
        frames = image.patches.reshape(len(image.patches), config.channels, config.frames, -1)
        first, later = (frames[:, :, index].reshape(len(frames), -1) for index in range(config.frames))
        positions = np.concatenate([merged_positions(grid, config.merge) for grid in image.grids])
        sizes = np.repeat([height * width for _, height, width in image.grids], [grid[0] for grid in image.grids])
        spans = make_spans(np.concatenate([[0], np.cumsum(sizes)])).repeat(sizes, axis=0)
        return {"patches": first, "later_patches": later, POSITIONS: positions, SPANS: spans}

    def embed_arrays(self) -> tuple[str, ...]:
        return ("patches", "later_patches")

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        return ops.add(self.patches(arrays["patches"], weights), self.later_patches(arrays["later_patches"], weights))

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.merger(x, weights)


@tower("qwen2vl", QwenTowerConfig)
class Qwen2VLTower(QwenTower):
    """CLIP's layers with rotary positions."""

    def layer(self, config: QwenTowerConfig, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        return TowerLayer(norms[0], self.attention(config, index), norms[1], MLP(name, config, config.activation))


def merged_positions(grid: tuple[int, int, int], merge: int) -> NDArray[np.int32]:
    """Return the row and the column of each patch of a grid (time, height, width): int32 [patches, 2].

    The patches of a square of `merge` by `merge` are adjacent, and the squares row-major.
    """
    time, height, width = grid
    places = np.indices((height, width), np.int32).reshape(2, height // merge, merge, width // merge, merge)
    return np.tile(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2), (time, 1))
