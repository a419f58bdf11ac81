"""Rules for the tensors that a quantizer skips, by name and shape: small tensors, tables, routers.

Source: `tensor_allows_quantization` in llama.cpp's llama-quant.cpp.
"""

from typing import Literal

# Parts of names: norms, routers, tables, convolutions, small products of recurrent layers, vision and audio parts.
SKIPPED_NAME_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    *(f"time_mix_{part}.weight" for part in (
        "first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2", "lerp_fused",
    )),
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
SKIPPED_NAMES = ("position_embd.weight", "token_types.weight")

# Architecture -> further name parts that are skipped, and name parts that get Q8_0 in every mix.
ARCHITECTURE_RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "glm5-next": (
        (
            "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
            "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight",
            "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight",
        ),
        ("attn_q_a", "attn_q_b", "nextn.eh_proj"),
    ),
}  # fmt: skip


def is_skipped(name: str, shape: tuple[int, ...], architecture: str) -> bool:
    """Return whether a tensor of this logical shape keeps its format in every mix."""
    # A matrix with a single row counts as a vector.
    if not any(extent > 1 for extent in shape[:-1]) or not name.endswith("weight"):
        return True
    return match_name(name, architecture) == "skip"


def match_name(name: str, architecture: str) -> Literal["skip", "Q8_0", ""]:
    """Return the decision that the name of a matrix alone makes: skip it, store it as Q8_0, or "" for neither."""
    skipped, eight_bits = ARCHITECTURE_RULES.get(architecture, ((), ()))
    if name in SKIPPED_NAMES or any(part in name for part in (*SKIPPED_NAME_PARTS, *skipped)):
        return "skip"
    return "Q8_0" if any(part in name for part in eight_bits) else ""
