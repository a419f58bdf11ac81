"""ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its layers, and whose head has GELU."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import Kind, Names, Table
from sporelm.models.blocks import MLP, Classifier, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import WIDENED, Encoder
from sporelm.models.families.bert_names import HEADS, KINDS, Said
from sporelm.models.registry import architecture
from sporelm.models.text_facts import EMBEDDED, TYPES, TextFacts, headed, label_words, noticed, said

SAID = Said("electra.", "classifier.dense", "classifier.out_proj")
NUMBERS: dict[str, Any] = {"vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12}
NUMBERS |= {"num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 512}
NUMBERS |= {"type_vocab_size": 2, "layer_norm_eps": 1e-12}


def _table(front: str = "") -> Table:
    widened = (Names(f"{WIDENED}.{k}", f"token_embd_widened.{k}", f"{front}embeddings_project.{k}") for k in KINDS)
    return (*SAID.table(front), *widened)


CLASSES = tuple(
    HfClass(f"Electra{name}", "electra", NUMBERS, names=_table(front))
    for name, front in (
        *(("Model", ""), ("ForMaskedLM", ""), ("ForPreTraining", "")),
        ("ForSequenceClassification", SAID.front),
    )
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    facts: TextFacts = config.own
    if facts.embedded == config.width:
        facts = replace(facts, embedded=0)
    return headed(replace(config, own=facts), values, kind)


@architecture(
    Family(
        "electra",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            EMBEDDED,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={
            "hidden_act": ("gelu",),
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        finish=_finished,
        noticed=noticed,
        said=lambda config: said(config, "electra"),
        choose=lambda config: CLASSES[3 if config.own.labels else 0].name,
        words=lambda config: {"embedding_size": config.own.embedded or config.width} | label_words(config),
        fronts=(SAID.front,),
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", SAID.front)),
            *("generator_predictions.*", "generator_lm_head.*", "discriminator_predictions.*"),
            *HEADS,
        ),
        own=TextFacts,
        reads=True,
    )
)
class Electra(Encoder):
    """BERT's layers behind embeddings that a product widens."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderAttention(name, config), second, MLP(name, config, "gelu"), post=True)

    def head(self, config: ModelConfig, facts: TextFacts) -> Classifier:
        return Classifier(facts.labels, config.width, dense=facts.dense, bias=True, activation="gelu")
