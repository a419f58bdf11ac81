"""Jina Embeddings v3 without the adapters of its tasks: XLM-RoBERTa with rotary positions."""

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.forms import qkv_names
from sporelm.checkpoints.tensor_names import Names, Table, with_bias
from sporelm.models.blocks import MLP, EncoderAttention, EncoderLayer
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import HEADS
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, headed, label_words, noticed, said

NUMBERS = {"max_position_embeddings": 8194, "vocab_size": 250002, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
PARTS = (
    ("attn_o", "attn_output", "mixer.out_proj"),
    ("attn_norm", "attn_output_norm", "norm1"),
    ("ffn_up", "ffn_up", "mlp.fc1"),
    ("ffn_down", "ffn_down", "mlp.fc2"),
    ("ffn_norm", "layer_output_norm", "norm2"),
)


def _table(front: str = "") -> Table:
    words, layer = f"{front}embeddings.", f"{front}encoder.layers.{{}}."
    return (
        Names("embedding.weight", "token_embd.weight", f"{words}word_embeddings.weight"),
        Names("types.weight", "token_types.weight", f"{words}token_type_embeddings.weight"),
        *with_bias("embedding_norm", "token_embd_norm", f"{front}emb_ln"),
        *qkv_names(f"{layer}mixer.Wqkv"),
        *(names for o, g, h in PARTS for names in with_bias(f"layers.{{}}.{o}", f"blk.{{}}.{g}", f"{layer}{h}")),
        *with_bias("classifier_dense", "cls", "classifier.dense"),
        *with_bias("classifier", "cls.output", "classifier.out_proj"),
    )


CLASSES = tuple(
    HfClass(f"JinaEmbeddingsV3{name}", "jina_embeddings_v3", NUMBERS, names=_table(front))
    for name, front in (("Model", ""), ("ForMaskedLM", ""), ("ForSequenceClassification", "roberta."))
)


@architecture(
    Family(
        "jina-bert-v3",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "window"),
        ),
        CLASSES[0].names,
        fixed={"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"hidden_act": ("gelu",), "is_decoder": (False,)},
        finish=headed,
        noticed=noticed,
        said=lambda config: said(config, "jina-bert-v3"),
        choose=lambda config: CLASSES[2 if config.own.labels else 0].name,
        words=label_words,
        reworded=lambda values: {"rope_theta": 20000.0, **values},
        fronts=("roberta.",),
        ignored=(*HEADS, *(f"{front}pooler.dense.*" for front in ("", "roberta."))),
        own=TextFacts,
        reads=True,
    )
)
class JinaBertV3(Encoder):
    """Tokens and their types added; a norm after each sum; rotary attention, GELU (Sturua et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderAttention(name, config), second, MLP(name, config, "gelu"), post=True)
