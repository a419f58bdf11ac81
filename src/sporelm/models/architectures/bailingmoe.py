"""Ling 1 (lite and plus): Llama with a mixture of experts and shared experts."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class BailingMoeConfig(ModelConfig):
    """has_normalized_head: the columns of the output are normalized to length one."""

    has_normalized_head: bool = False


@architecture("bailingmoe", BailingMoeConfig)
class BailingMoe(Decoder[BailingMoeConfig]):
    """The Llama layer with a mixture in place of its feed-forward block (inclusionAI 2025)."""
