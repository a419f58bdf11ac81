"""Megatron-BERT (Shoeybi et al. 2019) and XLM-RoBERTa-XL (Goyal et al. 2021): BERT with norms in front."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Table, changed
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import BEFORE, HEADS, KINDS, Said
from sporelm.models.families.bert_words import after_padding
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, label_words, labels_of, noticed, said

ATTENTION = (*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense")
MLP_PARTS = "intermediate.dense", "output.dense"
SAID = {
    "megatron-bert": Said("bert.", "bert.pooler.dense", "classifier", (*ATTENTION, "attention.ln", *MLP_PARTS, "ln")),
    "xlm-roberta-xl": Said(
        "roberta.",
        "classifier.dense",
        "classifier.out_proj",
        (*ATTENTION, "attention.self_attn_layer_norm", *MLP_PARTS, "LayerNorm"),
        before=BEFORE,
    ),
}
LAST = {"megatron-bert": "encoder.ln", "xlm-roberta-xl": "encoder.LayerNorm"}
TITLES = {"megatron-bert": "MegatronBert", "xlm-roberta-xl": "XLMRobertaXL"}
NUMBERS: dict[str, dict[str, Any]] = {
    "megatron-bert": {"vocab_size": 29056, "type_vocab_size": 2, "max_position_embeddings": 512},
    "xlm-roberta-xl": {"vocab_size": 250880, "type_vocab_size": 1, "max_position_embeddings": 514},
}
EPS = {"megatron-bert": 1e-12, "xlm-roberta-xl": 1e-5}


def _table(kind: str, front: str = "") -> Table:
    norms = []
    for names in SAID[kind].table(front):
        if names.ours.startswith(("layers.{}.attn_norm.", "layers.{}.ffn_norm.")):  # GGUF's words for what is behind
            norms.append(names._replace(gguf=names.ours.replace("layers.", "blk.")))
    last = (Names(f"output_norm.{k}", f"output_norm.{k}", f"{front}{LAST[kind]}.{k}") for k in KINDS)
    return changed(SAID[kind].table(front), *norms, *last)


CLASSES = tuple(
    HfClass(f"{TITLES[kind]}{name}", kind, {"layer_norm_eps": EPS[kind]} | NUMBERS[kind], names=_table(kind, front))
    for kind, found in SAID.items()
    for name, front in (("Model", ""), ("ForMaskedLM", ""), ("ForSequenceClassification", found.front))
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    found = next(one for one in CLASSES if one.name == config.architecture)
    facts: TextFacts = replace(config.own, kind=found.model_type)
    if found.name.endswith("Classification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    if not SAID[facts.kind].before:
        return replace(config, own=facts)
    return after_padding(replace(config, own=facts), values)


def _noticed(config: ModelConfig, metadata: Any, shapes: Any) -> ModelConfig:
    config = noticed(config, metadata, shapes)
    kind = "megatron-bert" if config.own.kind == "bert" else "xlm-roberta-xl"  # by the tokenizer
    return replace(config, own=replace(config.own, kind=kind))


def _words(config: ModelConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.context_length + SAID[config.own.kind].before} | label_words(config)


@architecture(
    Family(
        "megatron-bert",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"hidden_act": ("gelu",), **dict.fromkeys(("is_decoder", "add_cross_attention"), (False,))},
        finish=_finished,
        noticed=_noticed,
        said=lambda config: said(config, "megatron-bert"),
        choose=lambda config: TITLES[config.own.kind] + ("ForSequenceClassification" if config.own.labels else "Model"),
        words=_words,
        fronts=("bert.", "roberta."),
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", "bert.", "roberta.")),
            *(f"{front}pooler.dense.{kind}" for front in ("", "bert.", "roberta.") for kind in KINDS),
            *HEADS,
        ),
        own=TextFacts,
        reads=True,
    )
)
class MegatronBert(Encoder):
    """Norms in front of each part and behind the last layer; none of the embeddings."""

    outer_norms = ("", "output_norm")

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderAttention(name, config), second, MLP(name, config, "gelu"), post=False)
