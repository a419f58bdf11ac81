"""QRWKV6: Qwen2's layer with RWKV-6's time mix in place of attention."""

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.rwkv6 import Rwkv6Config
from sporelm.models.blocks import GroupedTimeMix, Layer, pre_norm
from sporelm.models.blocks.token_shift import shift_table
from sporelm.models.decoder import Decoder


@architecture("rwkv6qwen2", Rwkv6Config)
class Rwkv6Qwen2(Decoder[Rwkv6Config]):
    """The Qwen2 layer with linear attention; keys are scaled by the share that their decays remove (Recursal 2024)."""

    def layer(self, config: Rwkv6Config, index: int) -> Layer:
        ranks = config.token_shift_lora_rank, config.decay_lora_rank
        return pre_norm(config, index, GroupedTimeMix(f"layers.{index}", config, *ranks))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | shift_table(self.config.width)
