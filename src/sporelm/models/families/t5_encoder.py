"""Encoders of T5 and mT5 alone: sentence-t5, GTR, Instructor."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind, Names
from sporelm.errors import UnsupportedModel
from sporelm.models.biased_encoder import DISTANCE_BIASES, BiasedEncoder
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer, GatedMLP, RMSNorm
from sporelm.models.config import MOST_HEAD_DIM, ModelConfig
from sporelm.models.distances import BUCKETS, FARTHEST
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TextFacts, noticed, said

BLOCK = "encoder.block.{}.layer."
GATED, PLAIN = "gated-gelu", "relu"
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight")  # folders have one of them, or both, which are one
PARTS = {f"attn_{part}": (f"attn_{part}", f"0.SelfAttention.{part}") for part in "qkvo"}
PARTS |= {"attn_norm": ("attn_norm", "0.layer_norm"), "ffn_norm": ("ffn_norm", "1.layer_norm")}
PARTS |= {"ffn_gate": ("ffn_gate", "1.DenseReluDense.wi_0"), "ffn_up": ("ffn_up", "1.DenseReluDense.wi_1")}
PARTS |= {"ffn_up_plain": ("ffn_up", "1.DenseReluDense.wi")}  # of a block without a gate
PARTS |= {f"ffn_down{plain}": ("ffn_down", "1.DenseReluDense.wo") for plain in ("", "_plain")}
NAMES = (
    Names("embedding.weight", "token_embd.weight", EMBEDDINGS[0]),
    Names("output_norm.weight", "enc.output_norm.weight", "encoder.final_layer_norm.weight"),
    Names(
        DISTANCE_BIASES,
        "enc.blk.0.attn_rel_b.weight",
        f"{BLOCK}0.SelfAttention.relative_attention_bias.weight".format(0),
    ),
    *(
        Names(f"layers.{{}}.{ours}.weight", f"enc.blk.{{}}.{gguf}.weight", f"{BLOCK}{hf}.weight")
        for ours, (gguf, hf) in PARTS.items()
    ),
)
NUMBERS: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
NUMBERS |= {"n_positions": 512, "vocab_size": 32128, "feed_forward_proj": PLAIN, "layer_norm_epsilon": 1e-6}
NUMBERS_OF_MT5 = NUMBERS | {"vocab_size": 250112, "feed_forward_proj": GATED, "d_ff": 1024, "num_layers": 8}
NUMBERS_OF_MT5 |= {"num_heads": 6}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The kind of feed-forward block, which transformers takes apart, and writes and reads in parts too."""
    told = values.get("feed_forward_proj")
    if not isinstance(told, str):
        return values
    gated, function = told.startswith("gated-"), "gelu_new" if told == GATED else told.rpartition("-")[2]
    gated, function = values.get("is_gated_act", gated), values.get("dense_act_fn", function)
    for kind, parts in {PLAIN: (False, "relu"), GATED: (True, "gelu_new")}.items():
        if (gated, function) == parts:
            return {**values, "feed_forward_proj": kind}
    beside = {key: values[key] for key in ("is_gated_act", "dense_act_fn") if key in values}
    what = f"feed_forward_proj {shown(told)} is not supported" + (f" with {shown(beside)}" if beside else "")
    raise UnsupportedModel(f"config.json: {what}; {PLAIN} and {GATED} are")


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, scales=replace(config.scales, attention=1.0))


def _noticed(config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    count = metadata.get("t5encoder.attention.relative_buckets_count", BUCKETS)
    if not isinstance(count, int) or count != BUCKETS:
        raise UnsupportedModel(f"relative_buckets_count {str(count)[:40]} is not supported; {BUCKETS} is")
    gated = "enc.blk.0.ffn_gate.weight" in shapes
    return replace(noticed(config, metadata, shapes), activation=GATED if gated else PLAIN)


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    return said(config, "t5encoder") | {"t5encoder.attention.relative_buckets_count": ("u32", BUCKETS)}


@architecture(
    Family(
        "t5encoder",
        (HfClass("T5EncoderModel", "t5", NUMBERS), HfClass("MT5EncoderModel", "mt5", NUMBERS_OF_MT5)),
        fields(
            Field("layers", "block_count", "u32", "num_layers"),
            Field("width", "embedding_length", "u32", "d_model"),
            Field("ffn", "feed_forward_length", "u32", "d_ff"),
            Field("heads", "attention.head_count", "u32", "num_heads"),
            Field("head_dim", "attention.key_length", "u32", "d_kv", 2, MOST_HEAD_DIM),
            Field("head_dim", "attention.value_length", "u32", ""),
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            Field("activation", "", "str", "feed_forward_proj", default=PLAIN, words=(PLAIN, GATED)),
            without=("kv_heads", "rotary", "window"),
        ),
        NAMES,
        others={HF: (Names("embedding.weight", "token_embd.weight", EMBEDDINGS[1]),)},
        fixed={"rotary": 0},
        reworded=_reworded,
        only={
            "relative_attention_num_buckets": (BUCKETS,),
            "relative_attention_max_distance": (FARTHEST,),
            "is_decoder": (False,),
        },
        finish=_finished,
        noticed=_noticed,
        said=_said,
        positions="n_positions",
        ignored=(*EMBEDDINGS, "decoder.*", "lm_head.weight"),
        own=TextFacts,
        reads=True,
    )
)
class T5Encoder(BiasedEncoder):
    """Norms in front, scores without a scale, numbers for distances, ReLU or a gate with GELU (Raffel et al. 2020)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")
    placed = False

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        gated = config.activation == GATED
        mlp = GatedMLP(name, config, "gelu_tanh") if gated else MLP(name, config, "relu", part="_plain")
        return EncoderLayer(first, EncoderAttention(name, config, biased=True), second, mlp, post=False)
