"""MiniCPM-V's tower: SigLIP's ViT for slices of any shape, and a resampler: learned queries attend to the patches of a
slice (Yao et al. 2024; the resampler is that of Qwen-VL, Bai et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import LayerNorm, Linear
from sporelm.models.params import Columns, Param, Rows
from sporelm.models.tower import SPANS, Arrays, ParameterOwner, Tower, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower
from sporelm.models.towers.idefics3 import bucket_positions
from sporelm.models.vit_tower import POSITIONS, VitConfig, VitTower

HEAD_DIM: Final = 128  # of the resampler's attention
EPS: Final = 1e-6  # of the resampler's norms
BASE: Final = 10000.0  # of the resampler's sinusoidal positions
QUERY: Final = "resampler.query"
QUERIES, QUERY_SPANS = "queries", "query spans"  # float32 [slices * queries, out_width], int32 [slices * queries, 2]
KEY_POSITIONS: Final = "key positions"  # float32 [patches, out_width]
KEYS, VALUES = "keys", "values"


@dataclass(frozen=True, kw_only=True)
class MinicpmvTowerConfig(VitConfig):
    """The fields of MiniCPM-V's towers.

    version   llama.cpp's number for the model, `clip.minicpmv_version`
    queries   rows that the resampler returns for each slice
    """

    has_class_row: bool = False
    version: int = 3
    queries: int = 64

    @property
    def has_1d_positions(self) -> bool:
        """Whether the ViT treats the patches of a slice as one row: MiniCPM-Llama3-V 2.5 does not pass it the grid."""
        return self.version == 2


@tower("minicpmv", MinicpmvTowerConfig)
class MinicpmvTower(VitTower[MinicpmvTowerConfig]):
    """Keys of the resampler have positions in two dimensions, values and queries have none."""

    host_weights = (QUERY,)

    def __init__(self, config: MinicpmvTowerConfig) -> None:
        super().__init__(config)
        width, name = config.out_width, "resampler"
        self.query = Param(QUERY, (config.queries, width), plain=True)
        self.last_norm = LayerNorm("last_norm", config.width, config.eps)
        self.kv = None if config.width == width else Linear(f"{name}.kv", width, config.width)
        self.q_norm, self.kv_norm, self.norm = (
            LayerNorm(f"{name}.{part}", width, EPS) for part in ("q_norm", "kv_norm", "norm")
        )
        self.q, self.k, self.v = (
            Linear(f"{name}.attn_{part}", width, width, bias=True, split=Rows(HEAD_DIM)) for part in "qkv"
        )
        self.o = Linear(f"{name}.attn_o", width, width, bias=True, split=Columns(HEAD_DIM))
        self.projector = Linear("projector", width, width)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        kv = [] if self.kv is None else [self.kv]
        norms = [self.last_norm, self.q_norm, self.kv_norm, self.norm]
        return [*super().blocks, *norms, *kv, self.q, self.k, self.v, self.o, self.projector]

    def params(self) -> list[Param]:
        return [*super().params(), self.query]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        config, grids = self.config, [grid[1:] for grid in image.grids]
        shapes = [(1, height * width) if config.has_1d_positions else (height, width) for height, width in grids]
        return {
            "patches": image.patches,
            POSITIONS: np.concatenate([bucket_positions(*shape, config.grid) for shape in shapes]).astype(np.int32),
            SPANS: Tower.prepare(self, image, host)[SPANS],
            KEY_POSITIONS: np.concatenate([grid_positions(*grid, config.out_width) for grid in grids]),
            QUERIES: np.tile(host[QUERY], (len(grids), 1)),
            QUERY_SPANS: image.tile_spans().repeat(config.queries, axis=0),
        }

    def stages(self) -> list[TowerStage]:
        return [
            *self.layer_stages(),
            TowerStage(self._keys, ("x", KEY_POSITIONS)),
            TowerStage(self._resample, (QUERIES, QUERY_SPANS), (KEYS, VALUES)),
        ]

    def _keys(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        x = self.last_norm(arrays["x"], weights)
        x = self.kv_norm(x if self.kv is None else self.kv(x, weights), weights)
        return {KEYS: self.k(ops.add(x, arrays[KEY_POSITIONS]), weights), VALUES: self.v(x, weights)}

    def _resample(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        q = self.q(self.q_norm(arrays[QUERIES], weights), weights)
        mixed = ops.cross_attention(
            q, arrays[KEYS], arrays[VALUES], arrays[QUERY_SPANS], head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5
        )
        return {"rows": self.project(self.o(mixed, weights), weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.projector(self.norm(x, weights), weights)


def grid_positions(height: int, width: int, dim: int) -> NDArray[np.float32]:
    """Return sinusoidal positions in two dimensions: float32 [height * width, dim], row-major.

    The first half of a row encodes the column of a patch, the second its row; each half has sines, then cosines (He et
    al. 2022, MAE). Computed in float32, as in the authors' code.
    """
    frequencies = np.arange(dim // 4, dtype=np.float32) / np.float32(dim / 4)
    frequencies = np.float32(1) / np.float32(BASE) ** frequencies
    parts = []
    for count in (width, height):
        angles = np.arange(count, dtype=np.float32)[:, None] * frequencies
        parts.append(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))
    columns, rows = parts
    return np.concatenate([np.tile(columns, (height, 1)), rows.repeat(width, axis=0)], axis=1)
