"""InternLM2 and 2.5: Llama whose folders hold query, key and value in one tensor, group by group."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import by_group
from sporelm.weights.names import COMMON, Names, Stored, changed

LAYER = "model.layers.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "model.tok_embeddings.weight"),
    Names("output.weight", "output.weight", "output.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", f"{LAYER}attention_norm.weight"),
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", f"{LAYER}ffn_norm.weight"),
    *(
        Names(
            f"layers.{{}}.attn_{part}.{kind}",
            f"blk.{{}}.attn_{part}.{kind}",
            Stored(f"{LAYER}attention.wqkv.{kind}", by_group(part)),
        )
        for part in "qkv"
        for kind in ("weight", "bias")
    ),
    *(
        Names(f"layers.{{}}.attn_o.{kind}", f"blk.{{}}.attn_output.{kind}", f"{LAYER}attention.wo.{kind}")
        for kind in ("weight", "bias")
    ),
    *(
        Names(f"layers.{{}}.ffn_{ours}.weight", f"blk.{{}}.ffn_{ours}.weight", f"{LAYER}feed_forward.{hf}.weight")
        for ours, hf in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    ),
)


@architecture(
    Family(
        "internlm2",
        (
            HfClass(
                "InternLM2ForCausalLM",
                "internlm2",
                {"bias": True},
                (("bias", "attention_bias"),),
            ),
        ),
        fields(Field("attention_bias", "", "bool", "bias"), Field("attention_out_bias", "", "bool", "bias")),
        NAMES,
        paired_rows=True,
    )
)
class InternLM2(Decoder):
    """The Llama layer (Cai et al. 2024)."""
