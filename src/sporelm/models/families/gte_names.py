"""What files call the weights of GTE: folders as its authors write them, and as transformers does."""

from sporelm.checkpoints.family import HfClass
from sporelm.checkpoints.forms import ffn_rows, qkv_names, stacked
from sporelm.checkpoints.tensor_names import Names, Stored, Table, with_bias
from sporelm.models.families.bert_names import HEADS

FRONTS = ("new.", "gte.")
NUMBERS = {"max_position_embeddings": 8192, "vocab_size": 250048, "type_vocab_size": 1, "layer_norm_eps": 1e-12}
PARTS: tuple[tuple[str, str, str], ...] = (
    ("attn_o", "attn_output", "attention.o_proj"),
    ("attn_norm", "attn_output_norm", "attn_ln"),
)
PARTS += (("ffn_down", "ffn_down", "mlp.down_proj"), ("ffn_norm", "layer_output_norm", "mlp_ln"))


def _table(front: str = "") -> Table:
    words, layer = f"{front}embeddings.", f"{front}encoder.layer.{{}}."
    return (
        Names("embedding.weight", "token_embd.weight", f"{words}word_embeddings.weight"),
        Names("types.weight", "token_types.weight", f"{words}token_type_embeddings.weight"),
        *with_bias("embedding_norm", "token_embd_norm", f"{words}LayerNorm"),
        *qkv_names(f"{layer}attention.qkv_proj"),
        *(names for o, g, h in PARTS for names in with_bias(f"layers.{{}}.{o}", f"blk.{{}}.{g}", f"{layer}{h}")),
        *(
            Names(
                f"layers.{{}}.ffn_{part}.weight",
                f"blk.{{}}.ffn_{part}.weight",
                Stored(f"{layer}mlp.up_gate_proj.weight", stacked(number, ffn_rows, ffn_rows)),
            )
            for number, part in enumerate(("up", "gate"))
        ),
        *with_bias("classifier_dense", "cls", f"{front}pooler.dense"),
        *with_bias("classifier", "cls.output", "classifier"),
    )


CLASSES = (
    *(HfClass(f"{name}Model", "gte", NUMBERS, names=_table()) for name in ("Gte", "New")),
    *(HfClass(f"{name}ForMaskedLM", "gte", NUMBERS, names=_table()) for name in ("Gte", "New")),
    HfClass("NewForTokenClassification", "gte", NUMBERS, names=_table()),
    HfClass("GteForSequenceClassification", "gte", NUMBERS, names=_table("new.")),
    HfClass("NewForSequenceClassification", "gte", NUMBERS, names=_table("new.")),
)
# Of the class that fills gaps, of one that weighs words, and the pooler where nothing reads it.
UNREAD = (*HEADS, "classifier.weight", "classifier.bias", *(f"{front}pooler.dense.*" for front in ("", *FRONTS)))
