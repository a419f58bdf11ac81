"""LLaVA's tower: CLIP's ViT, whose last layers are left out, and a projector of two layers (Liu et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, Embedding, LayerNorm, Linear
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.params import Param
from sporelm.models.tower import Arrays, ParameterOwner, Tower, add_positions
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower

CLASS = "class_row"


@dataclass(frozen=True, kw_only=True)
class LlavaTowerConfig(TowerConfig):
    """The fields of LLaVA's towers.

    has_class_row    rows of the projector include that of the class embedding
    projector_act    the activation between the projector's layers
    projector_bias   they have biases
    """

    has_class_row: bool = False
    projector_act: str = "gelu"
    projector_bias: bool = True


@tower("llava", LlavaTowerConfig)
class LlavaTower(Tower[LlavaTowerConfig]):
    """CLIP's tower has a class embedding in front of the patches, and a norm before its first layer (Radford et al.
    2021)."""

    has_patch_bias = False

    def __init__(self, config: LlavaTowerConfig) -> None:
        super().__init__(config)
        self.class_row = Param(CLASS, (1, config.width), plain=True)
        self.positions = Embedding("positions", config.context_length, config.width)
        self.first_norm = LayerNorm("first_norm", config.width, config.eps)
        self.up = Linear("projector_up", config.out_width, config.width, bias=config.projector_bias)
        self.down = Linear("projector_down", config.out_width, config.out_width, bias=config.projector_bias)

    def layer(self, config: LlavaTowerConfig, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        return TowerLayer(norms[0], TowerAttention(name, config), norms[1], MLP(name, config, config.activation))

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [self.positions, self.first_norm, self.up, self.down]

    def params(self) -> list[Param]:
        return [*super().params(), self.class_row]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """Add a row in front of each tile, for the class embedding."""
        starts = image.tile_starts() + np.arange(len(image.grids) + 1)  # with those rows
        rows = np.zeros((starts[-1], image.patches.shape[1]), np.float32)
        positions = np.arange(starts[-1]) - starts[:-1].repeat(np.diff(starts))
        rows[positions > 0] = image.patches
        classes = np.where(positions > 0, -1, 0)
        spans = np.stack([starts[:-1], starts[1:]], axis=1).repeat(np.diff(starts), axis=0)
        arrays = {"patches": rows, "positions": positions, "classes": classes, "spans": spans}
        return {name: array if array.dtype == np.float32 else array.astype(np.int32) for name, array in arrays.items()}

    def embed_arrays(self) -> tuple[str, ...]:
        return ("patches", "positions", "classes")

    def embedded(self, arrays: Arrays, weights: Arrays) -> Any:
        x = ops.replace_rows(self.patches(arrays["patches"], weights), weights[CLASS], arrays["classes"])
        x = add_positions(x, weights["positions.weight"], arrays["positions"])
        return self.first_norm(x, weights)

    def project(self, x: Any, weights: Arrays) -> Any:
        return self.down(ops.activate(self.up(x, weights), kind=self.config.projector_act), weights)

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        if self.config.has_class_row:
            return rows
        starts = image.tile_starts() + np.arange(len(image.grids) + 1)
        return np.delete(rows, starts[:-1], axis=0)
