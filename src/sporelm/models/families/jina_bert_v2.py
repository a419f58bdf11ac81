"""Jina BERT v2 (jina-embeddings-v2): BERT with linear biases in place of positions, and GeGLU."""

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.forms import ffn_rows, stacked
from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.blocks import EncoderAttention, EncoderLayer, GatedMLP
from sporelm.models.config import ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, noticed, said

KINDS = ("weight", "bias")
LAYER = "encoder.layer.{}."
NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "embeddings.word_embeddings.weight"),
    Names("types.weight", "token_types.weight", "embeddings.token_type_embeddings.weight"),
    *(Names(f"embedding_norm.{kind}", f"token_embd_norm.{kind}", f"embeddings.LayerNorm.{kind}") for kind in KINDS),
    *(
        Names(f"layers.{{}}.{ours}.{kind}", f"blk.{{}}.{gguf}.{kind}", f"{LAYER}{hf}.{kind}")
        for ours, gguf, hf in (
            ("attn_q", "attn_q", "attention.self.query"),
            ("attn_k", "attn_k", "attention.self.key"),
            ("attn_v", "attn_v", "attention.self.value"),
            ("attn_o", "attn_output", "attention.output.dense"),
            ("attn_norm", "attn_output_norm", "attention.output.LayerNorm"),
            ("ffn_down", "ffn_down", "mlp.wo"),
            ("ffn_norm", "layer_output_norm", "mlp.layernorm"),
        )
        for kind in KINDS
    ),
    *(
        Names(
            f"layers.{{}}.ffn_{part}.weight",
            Stored("blk.{}.ffn_up.weight", stacked(number, ffn_rows, ffn_rows)),
            Stored(f"{LAYER}mlp.gated_layers.weight", stacked(number, ffn_rows, ffn_rows)),
        )
        for number, part in enumerate(("gate", "up"))
    ),
)


@architecture(
    Family(
        "jina-bert-v2",
        tuple(
            HfClass(
                name,
                "bert",
                {"max_position_embeddings": 512, "vocab_size": 30522, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
                | {"position_embedding_type": "absolute", "feed_forward_type": "original"},
            )
            for name in ("JinaBertModel", "JinaBertForMaskedLM")  # folders name the second, and hold the first
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed={"rotary": 0, "alibi": 8.0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": False},
        only={
            "position_embedding_type": ("alibi",),
            "feed_forward_type": ("geglu",),
            "hidden_act": ("gelu",),
            "is_decoder": (False,),
        },
        noticed=noticed,
        said=lambda config: said(config, "jina-bert-v2"),
        ignored=("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"),
        own=TextFacts,
        reads=True,
    )
)
class JinaBert(Encoder):
    """BERT's layer, whose scores fall with distance, with GeGLU (Guenther et al. 2023)."""

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        mlp = GatedMLP(name, config, "gelu", down_bias=True)
        return EncoderLayer(first, EncoderAttention(name, config), second, mlp, post=True)
