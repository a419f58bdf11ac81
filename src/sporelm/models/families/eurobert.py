"""EuroBERT: Llama's layer as an encoder."""

from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, Names, Table, bare, with_bias
from sporelm.models.blocks import Classifier, EncoderAttention, EncoderLayer, GatedMLP, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TextFacts, headed, label_words, noticed, said

NUMBERS = {"max_position_embeddings": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-5}
POOLED = {"bos": "cls", "mean": "mean", "late": "late"}  # words of config.json
HEAD = (
    *with_bias("classifier_dense", "cls", "dense"),
    *with_bias("classifier", "cls.output", "classifier"),
)


def _table(names: Table) -> tuple[Names, ...]:
    return (*(each for each in names if each.ours != "output.weight"), *HEAD)


CLASSES = (
    *(HfClass(f"EuroBert{name}", "eurobert", NUMBERS, names=_table(bare(COMMON))) for name in ("Model", "ForMaskedLM")),
    HfClass("EuroBertForSequenceClassification", "eurobert", NUMBERS, names=_table(COMMON)),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Its authors have a shorter word."""
    word = values.get("clf_pooling", values.get("classifier_pooling", "late"))
    return values | {"classifier_pooling": POOLED.get(word, word) if isinstance(word, str) else word}


def _words(config: ModelConfig) -> dict[str, Any]:
    facts: TextFacts = config.own
    pooled = next(word for word, ours in POOLED.items() if ours == facts.pooled)
    return {"classifier_pooling": pooled} | label_words(config)


@architecture(
    Family(
        "eurobert",
        CLASSES,
        fields(
            Field("own.pooled", "", "str", "classifier_pooling", default="late", words=tuple(POOLED.values())),
            without=("window",),
        ),
        CLASSES[0].names,
        only={"hidden_act": ("silu",), **dict.fromkeys(("attention_bias", "mlp_bias"), (False,))},
        finish=headed,
        noticed=noticed,
        said=lambda config: said(config, "eurobert"),
        choose=lambda config: CLASSES[2 if config.own.labels else 0].name,
        words=_words,
        reworded=_reworded,
        unsaid=lambda config: "it has a head" if config.own.labels else "",
        fronts=("model.",),
        ignored=("lm_head.weight",),
        own=TextFacts,
        reads=True,
    )
)
class EuroBert(Encoder):
    """Norms in front, rotary attention of grouped queries that sees both ways, SwiGLU (Boizard et al. 2025)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderAttention(name, config), second, GatedMLP(name, config), post=False)

    def head(self, config: EncoderConfig) -> Classifier:
        return Classifier(config.head_labels, config.width, dense=True, bias=True, activation="gelu")
