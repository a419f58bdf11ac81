"""MPNet (all-mpnet-base-v2 and its kin): BERT with a learned number for each distance, the same in all layers."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Table
from sporelm.models.biased_encoder import LEARNED, BiasedEncoder
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.distances import BUCKETS
from sporelm.models.families.bert_names import BEFORE, HEADS, Said
from sporelm.models.families.bert_words import after_padding
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TextFacts, label_words, labels_of, noticed, said

NUMBERS = {"max_position_embeddings": 512, "vocab_size": 30527, "layer_norm_eps": 1e-12, "pad_token_id": 1}
PARTS = (
    *(f"attention.attn.{part}" for part in "qkvo"),
    *("attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
SAID = Said("mpnet.", "classifier.dense", "classifier.out_proj", PARTS, before=BEFORE)


def _table(front: str = "") -> Table:
    # The name that T5's GGUF files have for the same, of all layers here.
    learned = Names(LEARNED, "attn_rel_b.weight", f"{front}encoder.relative_attention_bias.weight")
    return (*SAID.table(front), learned)


CLASSES = tuple(
    HfClass(f"MPNet{name}", "mpnet", NUMBERS, names=_table(front))
    for name, front in (("Model", ""), ("ForMaskedLM", ""), ("ForSequenceClassification", SAID.front))
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    scored = config.architecture.endswith("Classification")
    facts = TextFacts(labels=labels_of(values), dense=True) if scored else config.own
    return after_padding(replace(config, own=facts), values, None)


def _words(config: ModelConfig) -> dict[str, Any]:
    found = {"max_position_embeddings": config.context_length + BEFORE, "pad_token_id": BEFORE - 1}
    return found | label_words(config)


@architecture(
    Family(
        "mpnet",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"hidden_act": ("gelu",), "relative_attention_num_buckets": (BUCKETS,)},
        finish=_finished,
        noticed=noticed,
        said=lambda config: said(config, "mpnet"),
        choose=lambda config: CLASSES[2 if config.own.labels else 0].name,
        words=_words,
        fronts=(SAID.front,),
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", SAID.front)),
            *(f"{front}pooler.dense.{kind}" for front in ("", SAID.front) for kind in ("weight", "bias")),
            *HEADS,
        ),
        own=TextFacts,
        reads=True,
    )
)
class MPNet(BiasedEncoder):
    """BERT's layer without token types, with T5's relative positions beside learned ones (Song et al. 2020)."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        attention = EncoderAttention(name, config, biased=True)
        return EncoderLayer(first, attention, second, MLP(name, config, "gelu"), post=True)
