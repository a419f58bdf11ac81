"""A.X K2: DeepSeek V3.2 with gated norms and gated attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks.gated_sparse_attention import GatedSparseLayer
from sporelm.models.blocks.sparse_attention import run_sparse_layers
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.latent_config import SparseConfig


@dataclass(frozen=True, kw_only=True)
class AXK2Config(SparseConfig):
    """gated_norm_rank: rank of the gates of norms."""

    gated_norm_rank: int


@architecture("axk2", AXK2Config)
class AXK2(Decoder[AXK2Config]):
    """Latent attention over selected positions, then a mixture, or a dense block in the first layers."""

    layers: Sequence[GatedSparseLayer]

    def layer(self, config: AXK2Config, index: int) -> GatedSparseLayer:
        return GatedSparseLayer(config, index, "half", config.gated_norm_rank)

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        return run_sparse_layers(self.layers, x, step, weights, caches)
