"""EXAONE 3 and 3.5: Llama whose folders have GPT-2's names."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, Names, Table, changed

LAYER = "transformer.h.{}."


def named_as_gpt2(*matrices: tuple[str, str, str]) -> Table:
    """Llama's names, but folders have GPT-2's for embedding, norms and what comes down, and for these matrices of a
    layer: what we call each, GGUF files, folders."""
    same = (
        ("attn_norm", "attn_norm", "ln_1"),
        ("ffn_norm", "ffn_norm", "ln_2"),
        ("ffn_down", "ffn_down", "mlp.c_proj"),
    )
    return changed(
        COMMON,
        Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
        Names("output_norm.weight", "output_norm.weight", "transformer.ln_f.weight"),
        *(
            Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{LAYER}{hf}.weight")
            for ours, gguf, hf in (*same, *matrices)
        ),
    )


NAMES = named_as_gpt2(
    *((f"attn_{part}", f"attn_{part}", f"attn.attention.{part}_proj") for part in "qkv"),
    ("attn_o", "attn_output", "attn.attention.out_proj"),
    ("ffn_gate", "ffn_gate", "mlp.c_fc_0"),
    ("ffn_up", "ffn_up", "mlp.c_fc_1"),
)


@architecture(
    Family(
        "exaone",
        (HfClass("ExaoneForCausalLM", "exaone", {"layer_norm_epsilon": 1e-5, "num_layers": 32}),),
        fields(
            Field("layers", "block_count", "u32", "num_layers"),
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            without=("window",),
        ),
        NAMES,
        only={"activation_function": ("silu",)},
        reworded=lambda values: {"num_layers": values.get("num_hidden_layers"), **values},
        ignored=(f"{LAYER}attn.attention.rotary.inv_freq",),
        prefix="transformer.",
    )
)
class Exaone(Decoder):
    """The Llama layer (LG AI Research 2024)."""
