"""HyperCLOVA X SEED Think: Granite's scales, and norms of the outputs of blocks."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class HyperClovaXConfig(ModelConfig):
    """has_post_norms: the outputs of blocks are normed."""

    has_post_norms: bool = True


@architecture("hyperclovax", HyperClovaXConfig)
class HyperClovaX(Decoder[HyperClovaXConfig]):
    """The Llama layer, scaled, with norms before and after its blocks (Naver 2025)."""

    def layer(self, config: HyperClovaXConfig, index: int) -> Layer:
        return pre_norm(config, index, behind=config.has_post_norms)
