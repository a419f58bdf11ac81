"""Attention with a norm of each head of queries and keys, each with its own weight (PFN 2025)."""

from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.rms_norm import HeadRMSNorm, RMSNorm
from sporelm.models.config import ModelConfig


class PerHeadNormAttention(Attention):
    """Attention with norms before rotary positions."""

    def __init__(self, name: str, config: ModelConfig, window: int | None = None) -> None:
        super().__init__(name, config, window)
        counts = {"q": config.heads, "k": config.kv_heads}
        norms: list[RMSNorm] = [
            HeadRMSNorm(f"{name}.attn_{part}_norm", count, config.head_dim, config.eps, count // config.kv_heads)
            for part, count in counts.items()
        ]
        self.norms = norms
