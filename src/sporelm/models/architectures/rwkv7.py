"""RWKV-7 "Goose": a generalized delta rule and a feed-forward block. Both read the previous row of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.rwkv6 import RwkvDecoder
from sporelm.models.blocks import ChannelMix, LayerNorm, RwkvLayer, TimeMix7, TimeMix7Ranks
from sporelm.models.blocks.block_memory import list_memories
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs

GROUP_NORM_EPS: Final = 64e-5  # of the norm of heads in RWKV's own code and llama.cpp


@dataclass(frozen=True, kw_only=True)
class Rwkv7Config(ModelConfig):
    """lora_ranks: of the products in time mixes. group_norm_eps: of the norm of heads."""

    lora_ranks: TimeMix7Ranks
    group_norm_eps: float = GROUP_NORM_EPS


@architecture("rwkv7", Rwkv7Config)
class Rwkv7(RwkvDecoder[Rwkv7Config]):
    """x + time(norm(x)), then x + channel(norm(x)), of normed embeddings (Peng et al. 2025)."""

    def layer(self, config: Rwkv7Config, index: int) -> RwkvLayer:
        name = f"layers.{index}"
        return RwkvLayer(
            LayerNorm(f"{name}.attn_norm", config.width, config.eps),
            TimeMix7(name, config, config.lora_ranks, eps=config.group_norm_eps, is_first=index == 0),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps),
            ChannelMix(name, config),
        )

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        remaining, values = iter(caches), None
        for layer in self.layers:
            own_caches = islice(remaining, len(list_memories(layer.memory())))
            x, values = layer.with_values(x, values, step, weights, *own_caches)
        return x
