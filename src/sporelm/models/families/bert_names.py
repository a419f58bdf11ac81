"""What files call the weights of BERT, DistilBERT, ERNIE and RoBERTa's kin, whose GGUF files are all of "bert"."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from sporelm.checkpoints.family import HfClass
from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.text_facts import TextFacts

KINDS = ("weight", "bias")
BEFORE = 2  # rows of RoBERTa's table of positions before that of a text's first token (fairseq's padding, and one more)
GGUF_PARTS = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
)
OUR_PARTS = ("attn_q", "attn_k", "attn_v", "attn_o", "attn_norm", "ffn_up", "ffn_down", "ffn_norm")
OF_BERT = (
    *(f"attention.self.{part}" for part in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
OF_DISTILBERT = (
    *(f"attention.{part}_lin" for part in ("q", "k", "v", "out")),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)


@dataclass(frozen=True)
class BertFacts(TextFacts):
    """`tasks`: rows of the table of tasks that ERNIE 2 and 3 have, of which the first is added to every token's."""

    tasks: int = 0


class Said(NamedTuple):
    """What the classes of one kind call their weights.

    front          of the model in a class with a head
    dense, output  the layers of that head
    parts          of a layer, in the order of OUR_PARTS; `layers` is what stands in front
    before         rows of the table of positions that are of no token
    """

    front: str
    dense: str
    output: str
    parts: tuple[str, ...] = OF_BERT
    layers: str = "encoder.layer.{}."
    before: int = 0

    def table(self, front: str = "") -> Table:
        """The names of all weights."""
        tables = (("embedding", "token_embd", "word_embeddings"), ("types", "token_types", "token_type_embeddings"))
        rows = f"{front}embeddings.position_embeddings.weight"
        position = Stored(rows, skip=self.before) if self.before else rows
        return (
            *(Names(f"{o}.weight", f"{g}.weight", f"{front}embeddings.{h}.weight") for o, g, h in tables),
            Names("positions.weight", "position_embd.weight", position),
            *(Names(f"embedding_norm.{k}", f"token_embd_norm.{k}", f"{front}embeddings.LayerNorm.{k}") for k in KINDS),
            *(
                Names(f"layers.{{}}.{ours}.{k}", f"blk.{{}}.{gguf}.{k}", f"{front}{self.layers}{hf}.{k}")
                for ours, gguf, hf in zip(OUR_PARTS, GGUF_PARTS, self.parts, strict=True)
                for k in KINDS
            ),
            Names("tasks.weight", "task_types.weight", f"{front}embeddings.task_type_embeddings.weight"),
            *(Names(f"classifier_dense.{k}", f"cls.{k}", f"{self.dense}.{k}") for k in KINDS),
            *(Names(f"classifier.{k}", f"cls.output.{k}", f"{self.output}.{k}") for k in KINDS),
        )


BERT = Said("bert.", "bert.pooler.dense", "classifier")
ERNIE = Said("ernie.", "ernie.pooler.dense", "classifier")
ROBERTA = Said("roberta.", "classifier.dense", "classifier.out_proj", before=BEFORE)
DISTILBERT = Said("distilbert.", "pre_classifier", "classifier", OF_DISTILBERT, "transformer.layer.{}.")
NUMBERS = {"max_position_embeddings": 512, "vocab_size": 30522, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
# What DistilBERT's configurations call it -> what all others do.
WORDS = {"dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers"}
WORDS |= {"n_heads": "num_attention_heads", "activation": "hidden_act"}
OF_DISTILBERT_NUMBERS = {"type_vocab_size": 0, "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}
# Of the classes for training, which are named by folders of embedding models too; it is left unread.
HEADS = (
    *("cls.predictions.*", "cls.seq_relationship.*", "lm_head.*"),
    *("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"),
)


def _classes(name: str, kind: str, said: Said, *more: str, **numbers: Any) -> tuple[HfClass, ...]:
    """The model alone, with the head that scores texts, and with those that are left unread."""
    defaults, called = NUMBERS | numbers, {new: old for old, new in WORDS.items()} if kind == "distilbert" else {}
    plain = ("Model", "ForMaskedLM", *more)
    scores = HfClass(f"{name}ForSequenceClassification", kind, defaults, names=said.table(said.front), called=called)
    return (*(HfClass(f"{name}{one}", kind, defaults, names=said.table(), called=called) for one in plain), scores)


# By what configurations call the model: the start of its classes' names.
TITLES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
TITLES |= {"distilbert": "DistilBert", "ernie": "Ernie"}
CLASSES = (
    *_classes("Bert", "bert", BERT, "ForPreTraining"),
    *_classes("Ernie", "ernie", ERNIE, "ForPreTraining"),
    *_classes("Roberta", "roberta", ROBERTA, vocab_size=50265),
    *_classes("XLMRoberta", "xlm-roberta", ROBERTA),
    *_classes("Camembert", "camembert", ROBERTA),
    *_classes("DistilBert", "distilbert", DISTILBERT, **OF_DISTILBERT_NUMBERS),
)
