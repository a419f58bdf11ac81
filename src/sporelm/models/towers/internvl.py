"""InternVL's tower: InternViT (Chen et al. 2024), pixel shuffle, and a projector of two layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks import MLP, LayerNorm, Linear, RMSNorm
from sporelm.models.blocks.tower_layer import TowerAttention, TowerLayer
from sporelm.models.grouped_tower import GroupedTower, GroupedTowerConfig
from sporelm.models.tower import Arrays, ParameterOwner
from sporelm.models.tower_registry import tower

PROJECTOR_EPS = 1e-5  # of the projector's norm: PyTorch's default


@dataclass(frozen=True, kw_only=True)
class InternVLTowerConfig(GroupedTowerConfig):
    """The fields of InternVL's towers. `transposed` is true for ps_version "v1".

    rms_norms       the layers have RMS norms (InternViT-6B), not layer norms
    qk_eps          queries and keys have RMS norms over all heads, with this epsilon; 0: they have none
    projector_act   the activation between the projector's layers
    min_tiles       minimum number of tiles of a picture
    max_tiles       maximum number of tiles
    has_thumbnail   the tiles of a picture are followed by the whole picture, resized to one tile
    """

    rms_norms: bool = False
    qk_eps: float = 0.0
    projector_act: str = "gelu"
    min_tiles: int = 1
    max_tiles: int = 12
    has_thumbnail: bool = True


@tower("internvl", InternVLTowerConfig)
class InternVLTower(GroupedTower[InternVLTowerConfig]):
    """A ViT with LayerScale (Touvron et al. 2021)."""

    def __init__(self, config: InternVLTowerConfig) -> None:
        super().__init__(config)
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

    def project(self, x: Any, weights: Arrays) -> Any:
        inner = self.up(self.projector_norm(x, weights), weights)
        return self.down(ops.activate(inner, kind=self.config.projector_act), weights)
