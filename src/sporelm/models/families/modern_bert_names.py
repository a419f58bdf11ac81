"""What files call the weights of ModernBERT."""

from sporelm.checkpoints.family import HfClass
from sporelm.checkpoints.forms import QKV, ffn_rows, stacked
from sporelm.checkpoints.tensor_names import Names, Stored, Table

FFN = {part: stacked(number, ffn_rows, ffn_rows) for number, part in enumerate(("gate", "up"))}


def layer_names(prefix: str) -> Table:
    """The names of all but a head, which have this in front."""
    layer = f"{prefix}layers.{{}}."
    return (
        Names("embedding.weight", "token_embd.weight", f"{prefix}embeddings.tok_embeddings.weight"),
        Names("embedding_norm.weight", "token_embd_norm.weight", f"{prefix}embeddings.norm.weight"),
        Names("output_norm.weight", "output_norm.weight", f"{prefix}final_norm.weight"),
        *(
            Names(
                f"layers.{{}}.{ours}_{part}.weight",
                Stored(f"blk.{{}}.{gguf}.weight", rows),
                Stored(f"{layer}{hf}.weight", rows),
            )
            for ours, gguf, hf, parts in (("attn", "attn_qkv", "attn.Wqkv", QKV), ("ffn", "ffn_up", "mlp.Wi", FFN))
            for part, rows in parts.items()
        ),
        *(
            Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{layer}{hf}.weight")
            for ours, gguf, hf in (
                ("attn_norm", "attn_norm", "attn_norm"),
                ("attn_o", "attn_output", "attn.Wo"),
                ("ffn_norm", "ffn_norm", "mlp_norm"),
                ("ffn_down", "ffn_down", "mlp.Wo"),
            )
        ),
    )


def _names(prefix: str) -> Table:
    return (
        *layer_names(prefix),
        Names("classifier_dense.weight", "cls.weight", "head.dense.weight"),
        Names("classifier_norm.weight", "cls.norm.weight", "head.norm.weight"),
        *(Names(f"classifier.{kind}", f"cls.output.{kind}", f"classifier.{kind}") for kind in ("weight", "bias")),
    )


HEADS = ("head.*", "decoder.*")  # of the class that fills gaps, which folders of embedding models name too
CLASSES = tuple(
    HfClass(
        f"ModernBert{name}",
        "modernbert",
        {"max_position_embeddings": 8192, "vocab_size": 50368, "norm_eps": 1e-5, "classifier_pooling": "cls"},
        (("local_attention", "window"),),
        _names(prefix),
    )
    for name, prefix in (("Model", ""), ("ForSequenceClassification", "model."), ("ForMaskedLM", ""))
)
