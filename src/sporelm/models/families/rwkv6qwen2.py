"""QRWKV6: Qwen2's layer with RWKV-6's time mix in the place of attention."""

from typing import Any

import numpy as np

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, Names, changed, with_bias
from sporelm.models.blocks import FinchNumbers, GroupedTimeMix, Layer, pre_norm
from sporelm.models.blocks.token_shift import shift_table
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.rwkv6_names import mix_names
from sporelm.models.families.rwkv_words import POSITIONS, regrouped, said
from sporelm.models.registry import architecture

TIME, WIDE = "model.layers.{}.self_attn.", 4096
PARTS = (("q", "receptance"), ("k", "key"), ("v", "value"), ("o", "output"))
# Options of its code that change what is computed, with what llama.cpp computes.
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "use_tokenshift": (True,), "groupnorm_att": (False,)}
ONLY |= {"use_rope": (False,), "balance_state": (True,)}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json with the ranks that llama.cpp's converter takes where it says none, and no end of positions."""
    width = values.get("hidden_size")
    wide = type(width) is int and width >= WIDE
    ranks = {"lora_rank_tokenshift": 64 if wide else 32, "lora_rank_decay": 128 if wide else 64}
    told = {key: value for key, value in values.items() if value is not None}
    return {**ranks, **told, "max_position_embeddings": POSITIONS}


@architecture(
    Family(
        "rwkv6qwen2",
        (HfClass("RWKV6Qwen2ForCausalLM", "rwkv6qwen2", {}, (("attention_bias", "attention_bias"),)),),
        fields(
            Field("head_dim", "wkv.head_size", "u32", "head_dim"),
            Field("attention_bias", "", "bool", "attention_bias", default=True),
            Field("own.mix", "time_mix_extra_dim", "u32", "lora_rank_tokenshift", 1, MOST_WIDTH),
            Field("own.decay", "time_decay_extra_dim", "u32", "lora_rank_decay", 1, MOST_WIDTH),
            without=("rotary", "window"),
        ),
        changed(
            COMMON,
            *(
                names
                for ours, gguf in PARTS
                for names in with_bias(f"layers.{{}}.attn_{ours}", f"blk.{{}}.time_mix_{gguf}", f"{TIME}{ours}_proj")
            ),
            Names("layers.{}.attn_gate.weight", "blk.{}.time_mix_gate.weight", f"{TIME}gate.weight"),
            *mix_names(TIME, "rkvwg"),
        ),
        fixed={"rotary": 0},
        only=ONLY,
        reworded=_reworded,
        regrouped=regrouped,
        said=lambda config: said("rwkv6qwen2")(config) | {"rwkv6qwen2.token_shift_count": ("u32", 1)},
        own=FinchNumbers,
    )
)
class Rwkv6Qwen2(Decoder):
    """The Qwen2 layer; a state in place of attention, whose keys count by what fades (Recursal 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, GroupedTimeMix(f"layers.{index}", config))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | shift_table(self.config.width)
