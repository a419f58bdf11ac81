"""Refact: Llama's gate and layer norms without biases, linear biases in place of positions, one head of keys."""

from dataclasses import replace
from typing import Any

from sporelm.models.blocks import Layer, pre_norm, unbiased
from sporelm.models.decoder import Decoder
from sporelm.models.families.exaone import LAYER, named_as_gpt2
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_WIDTH, ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import ffn_rows, key_rows, stacked
from sporelm.weights.names import HF, Kind, Names, Stored, changed

UNIT = 256  # of which the width of the feed-forward block is a multiple
OLDER = named_as_gpt2(  # as the first folders have them
    *((f"attn_{part}", f"attn_{part}", f"attn.{part}") for part in "qkv"),
    ("attn_o", "attn_output", "attn.c_proj"),
    ("ffn_gate", "ffn_gate", "mlp.linear_1"),
    ("ffn_up", "ffn_up", "mlp.linear_3"),
)
NAMES = changed(
    OLDER,
    *(
        Names(
            f"layers.{{}}.{name}.weight",
            f"blk.{{}}.{name}.weight",
            Stored(f"{LAYER}{hf}.weight", stacked(number, rows, rows)),
        )
        for names, hf, rows in (
            (("attn_k", "attn_v"), "attn.kv", key_rows),
            (("ffn_gate", "ffn_up"), "mlp.gate_up_proj", ffn_rows),
        )
        for number, name in enumerate(names)
    ),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The gate takes a third of what a block without one would have, rounded up."""
    read = Fields(values, "config.json")
    inner = read.integer("n_inner", 1, MOST_WIDTH, 4 * read.integer("n_embd", 1, MOST_WIDTH))
    return {**values, "intermediate_size": -(-int(2 * inner / 3) // UNIT) * UNIT}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, kv_heads=1)


@architecture(
    Family(
        "refact",
        (HfClass("GPTRefactForCausalLM", "gpt_refact", {"n_positions": 4096, "layer_norm_epsilon": 1e-5}),),
        fields(
            Field("layers", "block_count", "u32", "n_layer"),
            Field("width", "embedding_length", "u32", "n_embd"),
            Field("heads", "attention.head_count", "u32", "n_head"),
            Field("kv_heads", "attention.head_count_kv", "u32", ""),
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            without=("head_dim", "rotary", "window"),
        ),
        NAMES,
        others={
            HF: tuple(
                names
                for names in OLDER
                if names.ours.endswith(("_k.weight", "_v.weight", "_gate.weight", "_up.weight"))
            )
        },
        fixed={"rotary": 0, "alibi": 8.0},
        only={"multi_query": (True,), "scale_attn_weights": (True,), "add_cross_attention": (False,)},
        finish=_finished,
        words=lambda config: {"n_inner": config.ffn * 3 // 2, "multi_query": True},
        reworded=_reworded,
        positions="n_positions",
        ignored=(f"{LAYER}attn.bias", "transformer.bias"),
        prefix="transformer.",
    )
)
class Refact(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Small Magellanic Cloud 2023)."""

    norms = staticmethod(unbiased)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
