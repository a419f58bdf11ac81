"""Attention whose queries and keys are normed head by head, each by a weight of its own (PFN 2025)."""

from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.rms_norm import HeadRMSNorm, RMSNorm
from sporelm.models.config import ModelConfig


class PerHeadNormAttention(Attention):
    """Attention, with norms in front of rotary positions."""

    def __init__(self, name: str, config: ModelConfig, window: int | None = None) -> None:
        super().__init__(name, config, window)
        counts = {"q": config.heads, "k": config.kv_heads}
        norms: list[RMSNorm] = [
            HeadRMSNorm(f"{name}.attn_{part}_norm", count, config.head_dim, config.eps, count // config.kv_heads)
            for part, count in counts.items()
        ]
        self.norms = norms
