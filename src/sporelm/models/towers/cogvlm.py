"""CogVLM's tower: EVA2-CLIP-E with post-norm layers, and a gated projector (Wang et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, LayerNorm, Linear
from sporelm.models.blocks.linear import apply_linears
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.grouped_tower import GroupedTower, GroupedTowerConfig
from sporelm.models.params import Param
from sporelm.models.row_kinds import NUM_KINDS, VISUAL_ROW, WORD_ROW
from sporelm.models.tower import Arrays, ParameterOwner
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import tower

PROJECTOR_EPS: Final = 1e-5  # of the projector's norm: PyTorch's default
BEGIN, END = "begin_row", "end_row"


@dataclass(frozen=True, kw_only=True)
class CogVLMTowerConfig(GroupedTowerConfig):
    """The fields of CogVLM's towers. With `merge` 2, a convolution joins squares of patches (CogVLM2).

    projector_ffn   width of the projector's gated block
    """

    projector_ffn: int

    @property
    def columns(self) -> int:
        """The width of the rows: an embedding, then a score for each expert of the text model."""
        return super().columns + NUM_KINDS


@tower("cogvlm", CogVLMTowerConfig)
class CogVLMTower(GroupedTower[CogVLMTowerConfig]):
    """A picture has a learned row before its patches, and one after them (boi, eoi)."""

    host_weights = (*GroupedTower.host_weights, BEGIN, END)

    def __init__(self, config: CogVLMTowerConfig) -> None:
        super().__init__(config)
        width, ffn = config.out_width, config.projector_ffn
        joined = config.width * config.merge**2
        self.merging = [Linear("merge", config.width, joined, bias=True)] if config.merge > 1 else []
        self.input = Linear("projector_input", width, config.width)
        self.projector_norm = LayerNorm("projector_norm", width, PROJECTOR_EPS)
        self.gate, self.up = (Linear(f"projector_{part}", ffn, width) for part in ("gate", "up"))
        self.down = Linear("projector_down", width, ffn)
        self.ends = [Param(name, (1, width), plain=True) for name in (BEGIN, END)]

    def layer(self, config: CogVLMTowerConfig, index: int) -> TowerLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        mlp = MLP(name, config, config.activation)
        return TowerLayer(norms[0], TowerAttention(name, config), norms[1], mlp, post=True)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*self.merging, self.input, self.projector_norm, self.gate, self.up, self.down]

    def params(self) -> list[Param]:
        return [*super().params(), *self.ends]

    def project(self, x: Any, weights: Arrays) -> Any:
        for linear in self.merging:
            x = linear(x, weights)
        x = ops.activate(self.projector_norm(self.input(x, weights), weights), kind="gelu")
        gate, up = apply_linears(x, weights, self.gate, self.up)
        return self.down(ops.silu_mul(gate, up), weights)

    def finish(
        self, rows: NDArray[np.float32], image: ImageInput, host: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Drop the class row, add the rows at both ends, and append the scores of the experts.

        The authors' code treats a row as visual if the next row belongs to the picture too, so the last row is not.
        """
        rows = np.concatenate([host[BEGIN], super().finish(rows, image, host), host[END]])
        scores = np.tile(np.array(VISUAL_ROW, np.float32), (len(rows), 1))
        scores[-1] = WORD_ROW
        return np.concatenate([rows, scores], axis=1)
