"""Zamba2: state spaces, with a shared transformer layer before some of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mamba2 import Mamba2Config
from sporelm.models.blocks import Layer, Linear, Mamba2Mixer, RMSNorm, SharedThenMamba, SharedTransformer
from sporelm.models.blocks.block_memory import list_memories
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs

MAX_HYBRID_LAYERS = 64


@dataclass(frozen=True, kw_only=True)
class Zamba2Config(Mamba2Config):
    """Shared blocks, and the layers with one before their state space.

    num_mem_blocks           shared blocks, which hybrid layers take in turn
    adapter_rank             of the low-rank matrices of each hybrid layer
    has_attention_adapters   queries, keys and values have low-rank matrices, too
    """

    hybrid_layers: frozenset[int] = frozenset()
    num_mem_blocks: int = 1
    adapter_rank: int = 0
    has_attention_adapters: bool = False


@architecture("zamba2", Zamba2Config)
class Zamba2(Decoder[Zamba2Config]):
    """x + mixer(norm(x)), and shared blocks that also read the embedding (Glorioso et al. 2024).

    Time steps are at least the configuration's minimum, as transformers has it in prompts.
    """

    def layer(self, config: Zamba2Config, index: int) -> Layer:
        name, hybrid_layers = f"layers.{index}", sorted(config.hybrid_layers)
        if index not in hybrid_layers:
            norm = RMSNorm(f"{name}.attn_norm", config.width, config.eps)
            return Layer(norm, Mamba2Mixer(name, config, config.mamba))
        number, inner = hybrid_layers.index(index), f"{name}.inner"
        owner = hybrid_layers[number % config.num_mem_blocks]
        shared = SharedTransformer(
            f"layers.{owner}.shared",
            config,
            number,
            config.adapter_rank,
            is_first=owner == index,
            has_attention_adapters=config.has_attention_adapters,
        )
        linear = Linear(f"{name}.shared_out", config.width, config.width)
        norm = RMSNorm(f"{inner}.attn_norm", config.width, config.eps)
        return SharedThenMamba(shared, linear, norm, Mamba2Mixer(inner, config, config.mamba))

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        remaining, first = iter(caches), x
        for layer in self.layers:
            own = islice(remaining, len(list_memories(layer.memory())))
            x = layer(x, step, weights, *([first] if isinstance(layer, SharedThenMamba) else []), *own)
        return x
