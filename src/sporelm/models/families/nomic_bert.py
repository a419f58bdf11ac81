"""Nomic BERT: BERT with rotary positions, a gated feed-forward block and no biases but those of norms."""

from typing import Any

from sporelm.models.blocks import GatedMLP, LayerNorm, TextAttention, TextLayer
from sporelm.models.encoder import Encoder
from sporelm.models.families.bert_names import HEADS
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TYPES, TextFacts, noticed, said
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import QKV
from sporelm.weights.names import Names, Stored, Table

KINDS = ("weight", "bias")
LAYER = "encoder.layers.{}."
NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "embeddings.word_embeddings.weight"),
    Names("types.weight", "token_types.weight", "embeddings.token_type_embeddings.weight"),
    *(Names(f"embedding_norm.{kind}", f"token_embd_norm.{kind}", f"emb_ln.{kind}") for kind in KINDS),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            Stored("blk.{}.attn_qkv.weight", QKV[part]),
            Stored(f"{LAYER}attn.Wqkv.weight", QKV[part]),
        )
        for part in "qkv"
    ),
    *(
        Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{LAYER}{hf}.weight")
        for ours, gguf, hf in (
            ("attn_o", "attn_output", "attn.out_proj"),
            ("ffn_up", "ffn_up", "mlp.fc11"),
            ("ffn_gate", "ffn_gate", "mlp.fc12"),
            ("ffn_down", "ffn_down", "mlp.fc2"),
        )
    ),
    *(
        Names(f"layers.{{}}.{ours}.{kind}", f"blk.{{}}.{gguf}.{kind}", f"{LAYER}{hf}.{kind}")
        for ours, gguf, hf in (("attn_norm", "attn_output_norm", "norm1"), ("ffn_norm", "layer_output_norm", "norm2"))
        for kind in KINDS
    ),
)
# What the authors' own configuration calls it -> transformers' words.
WORDS = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    if "n_embd" not in values:
        return values
    found = values | {new: values[old] for old, new in WORDS.items() if old in values}
    # It has more positions than it was trained with: beyond those its authors scale the rotary base by the text.
    found["max_position_embeddings"] = values.get("max_trained_positions") or values.get("n_positions", 2048)
    return found | {
        "hidden_act": {"swiglu": "silu"}.get(str(activation := values.get("activation_function")), activation)
    }


@architecture(
    Family(
        "nomic-bert",
        tuple(
            HfClass(
                f"NomicBert{name}",
                "nomic_bert",
                {"max_position_embeddings": 2048, "vocab_size": 30528, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
                | {"rope_theta": 1000.0},
            )
            for name in ("Model", "ForMaskedLM", "ForPreTraining")
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            TYPES,
            without=("head_dim", "kv_heads", "window"),
        ),
        NAMES,
        only={
            "hidden_act": ("silu",),
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "causal"), (False,)),
            **dict.fromkeys(("rotary_emb_interleaved", "use_rms_norm", "parallel_block"), (False,)),
            "rotary_emb_fraction": (1.0,),
            "moe_every_n_layers": (0,),
        },
        noticed=noticed,
        said=lambda config: said(config, "nomic-bert"),
        reworded=_reworded,
        fronts=("nomic_bert.", "bert."),
        ignored=HEADS,
        own=TextFacts,
        reads=True,
    )
)
class NomicBert(Encoder):
    """Tokens and their types added; a norm after each sum; rotary attention, SwiGLU (Nussbaum et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> TextLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return TextLayer(first, TextAttention(name, config), second, GatedMLP(name, config), post=True)

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.config.width, self.config.eps)
