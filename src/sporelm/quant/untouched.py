"""Which tensors a quantizer leaves as they are, by name and shape: small ones, tables, and what decides over others.

Source: `tensor_allows_quantization` in llama.cpp's llama-quant.cpp.
"""

from typing import Literal

# Parts of names: norms, routers, tables, convolutions, small products of recurrent layers, and of other senses.
PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    *(f"time_mix_{part}.weight" for part in (
        "first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2", "lerp_fused",
    )),
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
NAMES = ("position_embd.weight", "token_types.weight")

# Architecture -> further parts of names that are left alone, and those that get eight bits in every mix.
OF_ARCHITECTURE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "glm5-next": (
        (
            "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
            "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight",
            "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight",
        ),
        ("attn_q_a", "attn_q_b", "nextn.eh_proj"),
    ),
}  # fmt: skip


def is_untouched(name: str, shape: tuple[int, ...], architecture: str) -> bool:
    """Whether a tensor of this logical shape keeps its format in every mix."""
    # A matrix of one row counts as a vector.
    if not any(extent > 1 for extent in shape[:-1]) or not name.endswith("weight"):
        return True
    return named_weight(name, architecture) == "untouched"


def named_weight(name: str, architecture: str) -> Literal["untouched", "kept at Q8_0", ""]:
    """What the name of a matrix alone decides; "" for most."""
    untouched, eight_bits = OF_ARCHITECTURE.get(architecture, ((), ()))
    if name in NAMES or any(part in name for part in (*PARTS, *untouched)):
        return "untouched"
    return "kept at Q8_0" if any(part in name for part in eight_bits) else ""
