"""DeepSeek V3.2: DeepSeek V3 with sparse attention to the positions that an indexer selects."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks.sparse_attention import SparseLayer, run_sparse_layers
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.latent_config import SparseConfig


@architecture("deepseek32", SparseConfig)
class Deepseek32(Decoder[SparseConfig]):
    """Latent attention over selected positions, then a mixture or a dense block (DeepSeek 2025)."""

    layers: Sequence[SparseLayer]

    def layer(self, config: SparseConfig, index: int) -> SparseLayer:
        return SparseLayer(config, index, "half")

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        return run_sparse_layers(self.layers, x, step, weights, caches)
