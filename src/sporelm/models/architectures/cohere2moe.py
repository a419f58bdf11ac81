"""Command-A+ and North-Mini-Code: Command-R7B's layer with experts; the first, dense layers have no window."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, NormKind, RMSNorm, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Cohere2MoeConfig(ModelConfig):
    """rms_eps: the norms are RMS norms with this epsilon; None: they are layer norms."""

    rms_eps: float | None


@architecture("cohere2moe", Cohere2MoeConfig)
class Cohere2Moe(Decoder[Cohere2MoeConfig]):
    """x + attention(norm(x)) + mixture(norm(x)), one norm for both (Cohere 2026)."""

    def __init__(self, config: Cohere2MoeConfig) -> None:
        self.norms: NormKind = RMSNorm if config.rms_eps else layer_norm_without_bias
        super().__init__(config)

    def layer(self, config: Cohere2MoeConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms, shared=True)
