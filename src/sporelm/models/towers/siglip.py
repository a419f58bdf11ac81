"""SigLIP's image encoder: a ViT, whose rows a learned query pools to one vector (Zhai et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks import MLP, Embedding, LayerNorm
from sporelm.models.blocks.tower_layer import TowerAttention
from sporelm.models.tower import Arrays, ParameterOwner, TowerStage
from sporelm.models.tower_inputs import ImageInput, make_spans
from sporelm.models.tower_registry import tower
from sporelm.models.vit_tower import VitConfig, VitTower

PROBES: Final = "probes"  # int32 [tiles]: 0
TILE_SPANS: Final = "tile_spans"  # int32 [tiles, 2]


@dataclass(frozen=True, kw_only=True)
class SiglipTowerConfig(VitConfig):
    """The fields of SigLIP's image encoder."""

    has_class_row: bool = False
    activation: str = "gelu_tanh"


@tower("siglip", SiglipTowerConfig)
class SiglipTower(VitTower[SiglipTowerConfig]):
    """One row for each picture: attention of a learned query to all its rows, then x + mlp(norm(x))."""

    is_encoder = True

    def __init__(self, config: SiglipTowerConfig) -> None:
        super().__init__(config)
        self.last_norm = LayerNorm("last_norm", config.width, config.eps)
        self.probe = Embedding("head_probe", 1, config.width)
        self.attention = TowerAttention("head", config)
        self.head_norm = LayerNorm("head_norm", config.width, config.eps)
        self.mlp = MLP("head", config, config.activation)

    @property
    def blocks(self) -> Sequence[ParameterOwner]:
        return [*super().blocks, self.last_norm, self.probe, self.attention, self.head_norm, self.mlp]

    def prepare(self, image: ImageInput, host: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        spans = make_spans(self.tile_starts(image))
        return {**super().prepare(image, host), PROBES: np.zeros(len(spans), np.int32), TILE_SPANS: spans}

    def stages(self) -> list[TowerStage]:
        keys = TowerStage(self._project_keys, ("x",))
        return [*self.layer_stages(), keys, TowerStage(self._pool, (PROBES, TILE_SPANS), ("k", "v"))]

    def _project_keys(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        x = self.last_norm(arrays["x"], weights)
        return {"k": self.attention.k(x, weights), "v": self.attention.v(x, weights)}

    def _pool(self, arrays: Arrays, weights: Arrays) -> dict[str, Any]:
        queries = self.attention.q(self.probe(arrays[PROBES], weights), weights)
        return {"rows": self.project(self.attention.mix({**arrays, "q": queries}, TILE_SPANS, weights), weights)}

    def project(self, x: Any, weights: Arrays) -> Any:
        return ops.add(x, self.mlp(self.head_norm(x, weights), weights))
