"""PLaMo 2: state spaces with attention at regular intervals, norms around all blocks."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, PerHeadNormAttention, Plamo2MambaMixer, Plamo2MambaShape, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Plamo2Config(ModelConfig):
    """mamba: the sizes of the mixers. attention_layers: the layers with attention in place of one."""

    mamba: Plamo2MambaShape
    attention_layers: frozenset[int] = frozenset()


@architecture("plamo2", Plamo2Config)
class Plamo2(Decoder[Plamo2Config]):
    """Norms before and after both blocks (Preferred Networks 2025).

    Files of llama.cpp's converter make llama.cpp leave queries and keys unrotated; the published code rotates them.
    """

    def layer(self, config: Plamo2Config, index: int) -> Layer:
        name = f"layers.{index}"
        if index in config.attention_layers:
            attention = PerHeadNormAttention(name, config, config.window_of(index))
            return pre_norm(config, index, attention, behind=True)
        return pre_norm(config, index, Plamo2MambaMixer(name, config, config.mamba), behind=True)
