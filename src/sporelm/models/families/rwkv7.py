"""RWKV-7 "Goose": a generalized delta rule and a feed-forward block, both of which read the row before."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import HF
from sporelm.models.blocks import ChannelMix, LayerNorm, MixRanks, RwkvLayer, TimeMix7
from sporelm.models.blocks.block_memory import list_memories
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.families.rwkv6 import Rwkv6
from sporelm.models.families.rwkv7_names import NAMES, OLD_MIXES, RANKS, UNREAD
from sporelm.models.families.rwkv_words import finished, head_choice, regrouped, reworded, said, wanted, words
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture

CLASS = "RWKV7ForCausalLM"
ONLY = {"attn": (None,), "hidden_act": ("sqrelu",), "norm_first": (True,), "norm_bias": (True,)}


@architecture(
    Family(
        "rwkv7",
        (HfClass(CLASS, "rwkv7", {"norm_eps": 1e-5, "head_dim": 64, "hidden_ratio": 4.0}),),
        fields(
            Field("head_dim", "wkv.head_size", "u32", "head_dim"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "norm_eps"),
            *(
                Field(f"own.{ours}", f"attention.{gguf}_lora_rank", "u32", f"{hf}_low_rank_dim", 1, MOST_WIDTH)
                for ours, gguf, hf in RANKS
            ),
            Field("own.eps", "attention.group_norm_epsilon", "f32", "", 0.0, 1.0, OPTIONAL),
            without=("kv_heads", "rotary", "window"),
        ),
        NAMES,
        others={HF: OLD_MIXES},
        fixed={"rotary": 0},
        only=ONLY,
        finish=finished,
        said=said("rwkv7"),
        choose=head_choice(CLASS),
        reworded=reworded,
        regrouped=regrouped,
        words=words,
        wanted=wanted,
        ignored=UNREAD,
        own=MixRanks,
    )
)
class Rwkv7(Rwkv6):
    """x + time(norm(x)), then x + channel(norm(x)), of embeddings that are normed (Peng et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> RwkvLayer:
        name = f"layers.{index}"
        norms = [LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        return RwkvLayer(norms[0], TimeMix7(name, config, first=index == 0), norms[1], ChannelMix(name, config))

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        left, values = iter(caches), None
        for layer in self.layers:
            x, values = layer.with_values(x, values, step, weights, *islice(left, len(list_memories(layer.memory()))))
        return x
