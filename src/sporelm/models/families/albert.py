"""ALBERT (Lan et al. 2020): one layer of BERT, gone through again and again, behind narrow embeddings."""

from typing import Any

from sporelm.checkpoints.family import GELUS, Family, Field, HfClass, activation, fields
from sporelm.checkpoints.tensor_names import Names, Table
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import WIDENED, Encoder
from sporelm.models.families.bert_names import HEADS, KINDS, Said
from sporelm.models.registry import architecture
from sporelm.models.text_facts import EMBEDDED, TYPES, TextFacts, headed, label_words, noticed, said

PARTS = (
    *(f"attention.{part}" for part in ("query", "key", "value", "dense", "LayerNorm")),
    *("ffn", "ffn_output", "full_layer_layer_norm"),
)
SAID = Said("albert.", "albert.pooler", "classifier", PARTS, "encoder.albert_layer_groups.{}.albert_layers.0.")
MAPPING = "encoder.embedding_hidden_mapping_in"
NUMBERS: dict[str, Any] = {"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_hidden_layers": 12}
NUMBERS |= {"num_attention_heads": 64, "intermediate_size": 16384, "max_position_embeddings": 512}
NUMBERS |= {"type_vocab_size": 2, "layer_norm_eps": 1e-12}


def _table(front: str = "") -> Table:
    widened = (Names(f"{WIDENED}.{k}", f"token_embd_widened.{k}", f"{front}{MAPPING}.{k}") for k in KINDS)
    return (*SAID.table(front), *widened)


CLASSES = tuple(
    HfClass(f"Albert{name}", "albert", NUMBERS, names=_table(front))
    for name, front in (
        *(("Model", ""), ("ForMaskedLM", ""), ("ForPreTraining", "")),
        ("ForSequenceClassification", SAID.front),
    )
)


@architecture(
    Family(
        "albert",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            activation("hidden_act", "gelu_new"),
            TYPES,
            EMBEDDED,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        CLASSES[0].names,
        fixed={"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={
            "num_hidden_groups": (1,),
            "inner_group_num": (1,),
            "position_embedding_type": ("absolute",),
        },
        finish=headed,
        noticed=noticed,
        said=lambda config: said(config, "albert"),
        choose=lambda config: CLASSES[3 if config.own.labels else 0].name,
        words=label_words,
        fronts=(SAID.front,),
        ignored=(
            *(f"{front}embeddings.position_ids" for front in ("", SAID.front)),
            *(f"{front}pooler.{kind}" for front in ("", SAID.front) for kind in KINDS),
            *("predictions.*", "sop_classifier.*"),
            *HEADS,
        ),
        own=TextFacts,
        reads=True,
    )
)
class Albert(Encoder):
    """The layer of BERT; all of a text goes through it as often as others have layers."""

    def __init__(self, config: ModelConfig) -> None:
        self.passes = config.layers
        super().__init__(config)

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        mlp = MLP(name, config, GELUS[config.activation])
        return EncoderLayer(first, EncoderAttention(name, config), second, mlp, post=True)
