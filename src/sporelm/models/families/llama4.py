"""Llama 4: chunks of positions, layers that see all of them and rotate nothing, one expert a token and a shared one."""

from typing import Any

import numpy as np

from sporelm.checkpoints.beside_vision import OTHERS, text_names
from sporelm.checkpoints.experts import expert_fields, expert_names, shared_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.forms import expert_rows, stacked
from sporelm.checkpoints.rope_fields import MOST_CONTEXT, MOST_FACTOR
from sporelm.checkpoints.tensor_names import COMMON, HF, Names, Stored, changed
from sporelm.checkpoints.windows import every
from sporelm.models.blocks import Attention, Layer, PreWeightedMixture, pre_norm
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.llama4_words import STEP, Llama4Parts, finished, regrouped, reworded, unsaid, words
from sporelm.models.registry import architecture

QUERIES = "query_growth"  # the table by which queries grow that are not rotated
BLOCK = "model.layers.{}.feed_forward."
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
DEFAULTS |= {"rope_theta": 500000.0, "num_local_experts": 16, "num_experts_per_tok": 1}
DEFAULTS |= {"attention_chunk_size": 8192, "intermediate_size": 8192, "intermediate_size_mlp": 16384}
NAMES = changed(
    COMMON,
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{BLOCK}router.weight"),
    *(
        Names(
            f"layers.{{}}.ffn_{part}_exps.weight",
            f"blk.{{}}.ffn_{part}_exps.weight",
            Stored(f"{BLOCK}experts.{hf}", rows=rows, transposed=True, inner=True),
        )
        for part, hf, rows in (
            ("gate", "gate_up_proj", stacked(0, expert_rows, expert_rows)),
            ("up", "gate_up_proj", stacked(1, expert_rows, expert_rows)),
            ("down", "down_proj", None),
        )
    ),
    *shared_names(f"{BLOCK}shared_expert."),
    *(
        Names(f"layers.{{}}.ffn_{part}.weight", f"blk.{{}}.ffn_{part}.weight", f"{BLOCK}{part}_proj.weight")
        for part in ("gate", "up", "down")
    ),
)
SINGLE = expert_names(BLOCK)[1:]  # a tensor for each matrix, as quantizers write them
FLAGS = (("attention_chunk_size", "window"), ("use_qk_norm", "own.normed"))


@architecture(
    Family(
        "llama4",
        (
            HfClass("Llama4ForCausalLM", "llama4_text", DEFAULTS, FLAGS),
            HfClass("Llama4ForConditionalGeneration", "llama4", DEFAULTS, FLAGS),
        ),
        fields(
            Field("ffn", "feed_forward_length", "u32", "intermediate_size_mlp"),
            *expert_fields(
                optional=True,
                count="num_local_experts",
                used="num_experts_per_tok",
                ffn="intermediate_size",
                step="interleave_moe_layer_step",
            ),
            Field("own.normed", "", "bool", "use_qk_norm", default=True),
            Field("own.floor", "", "u32", "floor_scale", 1, MOST_CONTEXT, 8192),
            Field("own.growth", "", "f32", "attn_scale", 0, MOST_FACTOR, 0.1),
            without=("window",),
        ),
        NAMES,
        {HF: (*text_names(NAMES), *text_names(SINGLE), *SINGLE)},
        fixed={"rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
        finish=finished,
        reworded=reworded,
        regrouped=regrouped,
        words=words,
        unsaid=unsaid,
        full_layers=every(STEP),
        ignored=(*OTHERS, "vision_model.*"),
        own=Llama4Parts,
    )
)
class Llama4(Decoder):
    """The Llama layer with those parts (Meta 2025); queries that are not rotated grow with their position (Nakanishi
    2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates = index not in config.nope_layers
        options: dict[str, Any] = {"rotates": rotates, "chunked": True}
        if rotates and config.own.normed:
            options |= {"norm": "bare", "norms_last": True}
        if not rotates and config.own.growth:
            options["query_table"] = QUERIES
        name, experts = f"layers.{index}", config.experts
        attention = Attention(name, config, config.window_of(index), **options)
        return pre_norm(
            config, index, attention, PreWeightedMixture(name, config) if experts and experts.at(index) else None
        )

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config, own = self.config, self.config.own
        tables = super().tables(context) | ones_table(config.head_dim)
        if own.growth and config.nope_layers:
            growth = 1 + own.growth * np.log1p((np.arange(context) + 1) // own.floor)
            tables[QUERIES] = np.zeros((context, config.head_dim), np.float32)  # no sines: nothing turns
            tables[QUERIES][:, : config.head_dim // 2] = growth[:, None]
        return tables
