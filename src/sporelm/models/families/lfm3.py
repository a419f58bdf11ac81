"""LFM3: LFM2 with norms behind its blocks, gated heads, and a window in layers that have a rotary base of their own."""

from typing import Any

import numpy as np

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import HEAD_NORMS, POST_NORMS, Names, changed
from sporelm.models.blocks import Attention, HeadGatedAttention, Layer, ShortConv, feed_forward, pre_norm
from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.blocks.layer import Mixer
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import by_key_heads
from sporelm.models.families.lfm2 import FIELDS, LAYER
from sporelm.models.families.lfm2 import NAMES as NAMES_OF_LFM2
from sporelm.models.families.lfm3_words import Lfm3Parts, finished, of_hf, said, words
from sporelm.models.families.proportion import LOCAL_THETA
from sporelm.models.registry import architecture

GATE, POST = "layers.{}.attn_gate.weight", "layers.{}.attn_post_norm.weight"
NUMBERS: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 128, "conv_L_cache": 7, "sliding_window": 256}
NUMBERS |= {"norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 128000}
FLAGS = (
    *(("attention_bias", "attention_bias"), ("sliding_window", "window")),
    *(("use_attention_gate", "own.gated"), ("use_sandwich_norm", "own.behind")),
)
NAMES = changed(
    NAMES_OF_LFM2,
    *HEAD_NORMS,
    Names("layers.{}.attn_o.weight", "blk.{}.attn_output.weight", f"{LAYER}self_attn.o_proj.weight"),
    Names(GATE, "blk.{}.attn_gate.weight", f"{LAYER}self_attn.gate_proj.weight"),
    *(
        each._replace(hf=f"{LAYER}post_{part}_norm.weight")
        for each, part in zip(POST_NORMS, ("operator", "ffn"), strict=True)
    ),
)


@architecture(
    Family(
        "lfm3",
        (HfClass("Lfm3ForCausalLM", "lfm3", NUMBERS, FLAGS),),
        fields(
            *FIELDS,
            *(
                Field(f"attention_{part}bias", "", "bool", "attention_bias", weight=f"layers.{{}}.attn_{of}.bias")
                for part, of in (("", "q"), ("out_", "o"))
            ),
            Field("own.gated", "", "bool", "use_attention_gate", default=True, weight=GATE),
            Field("own.behind", "", "bool", "use_sandwich_norm", default=True, weight=POST),
            Field("local_theta", "rope.freq_base_swa", "f32", LOCAL_THETA, 1.0, MOST_THETA, 10000.0),
        ),
        NAMES,
        only={"conv_bias": (False,)},
        finish=finished,
        words=words,
        said=said,
        regrouped=by_key_heads,
        reworded=of_hf,
        tells_layers=True,
        own=Lfm3Parts,
        resaved=((".self_attn.gate_proj.", ".self_attn.g_proj."),),
    )
)
class Lfm3(Decoder):
    """LFM2's layer, normed behind; a head's sigmoid opens what it mixes (Liquid AI 2026)."""

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config = self.config
        return super().tables(context) | (head_tables(config.head_dim, [config.heads]) if config.own.gated else {})

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own, window = f"layers.{index}", config.own, config.window_of(index)
        mixer: Mixer
        if index not in own.attention:
            mixer = ShortConv(name, config, own.taps)
        elif own.gated:
            mixer = HeadGatedAttention(name, config, window, "sigmoid")
        else:
            mixer = Attention(name, config, window, norm="heads")
        return pre_norm(config, index, mixer, feed_forward(name, config, index), behind=own.behind)
