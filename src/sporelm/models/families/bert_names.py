"""What files call the weights of BERT, RoBERTa and XLM-RoBERTa, whose GGUF files are all of "bert"."""

from typing import Any

from sporelm.weights.family import HfClass
from sporelm.weights.names import Names, Stored, Table

KINDS = ("weight", "bias")
BEFORE = 2  # rows of RoBERTa's table of positions before that of a text's first token (fairseq's padding, and one more)
PARTS = (  # of a layer: ours, GGUF's, Hugging Face's
    *(
        (f"attn_{part}", f"attn_{part}", f"attention.self.{word}")
        for part, word in zip("qkv", ("query", "key", "value"), strict=True)
    ),
    ("attn_o", "attn_output", "attention.output.dense"),
    ("attn_norm", "attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "ffn_up", "intermediate.dense"),
    ("ffn_down", "ffn_down", "output.dense"),
    ("ffn_norm", "layer_output_norm", "output.LayerNorm"),
)


def _names(prefix: str, dense: str, output: str, before: int = 0) -> Table:
    tables = (("embedding", "token_embd", "word_embeddings"), ("types", "token_types", "token_type_embeddings"))
    rows = f"{prefix}embeddings.position_embeddings.weight"
    return (
        *(Names(f"{o}.weight", f"{g}.weight", f"{prefix}embeddings.{h}.weight") for o, g, h in tables),
        Names("positions.weight", "position_embd.weight", Stored(rows, skip=before) if before else rows),
        *(Names(f"embedding_norm.{k}", f"token_embd_norm.{k}", f"{prefix}embeddings.LayerNorm.{k}") for k in KINDS),
        *(
            Names(f"layers.{{}}.{ours}.{k}", f"blk.{{}}.{gguf}.{k}", f"{prefix}encoder.layer.{{}}.{hf}.{k}")
            for ours, gguf, hf in PARTS
            for k in KINDS
        ),
        *(Names(f"classifier_dense.{k}", f"cls.{k}", f"{dense}.{k}") for k in KINDS),
        *(Names(f"classifier.{k}", f"cls.output.{k}", f"{output}.{k}") for k in KINDS),
    )


def _classes(name: str, model_type: str, prefix: str, dense: str, output: str, **defaults: Any) -> tuple[HfClass, ...]:
    """The model alone, and with the head."""
    usual = {"max_position_embeddings": 512, "vocab_size": 30522, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    before = 0 if model_type == "bert" else BEFORE
    return (
        HfClass(f"{name}Model", model_type, usual | defaults, names=_names("", dense, output, before)),
        HfClass(
            f"{name}ForSequenceClassification",
            model_type,
            usual | defaults,
            names=_names(prefix, dense, output, before),
        ),
    )


ROBERTA = ("roberta.", "classifier.dense", "classifier.out_proj")
CLASSES = (
    *_classes("Bert", "bert", "bert.", "bert.pooler.dense", "classifier"),
    *_classes("Roberta", "roberta", *ROBERTA, vocab_size=50265),
    *_classes("XLMRoberta", "xlm-roberta", *ROBERTA),
)
