"""Tensors of GGUF files that schemas share, by parameter.

Names: the GGUF specification, "Standardized tensor names", and llama.cpp's llama-arch.cpp.
"""

from typing import Final

from sporelm.checkpoints.row_numbers import EXPERT_GATE_UP_ROWS, GATE_UP_ROWS, QKV_ROWS
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import PermuteRotary, Squeeze, Stack, TakeRows

CHOICE_BIAS: Final = "layers.{}.ffn_choice.bias"
PARTS: Final = ("weight", "bias")

EMBEDDING_TENSORS: Final[TensorTable] = {
    "embedding.weight": "token_embd.weight",
    "output_norm.weight": "output_norm.weight",
    "output.weight": "output.weight",
}
ATTENTION_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{parameter}.{part}": f"blk.{{}}.attn_{stored}.{part}"
    for parameter, stored in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
    for part in PARTS
}
MLP_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.ffn_{name}.{part}": f"blk.{{}}.ffn_{name}.{part}" for name in ("gate", "up", "down") for part in PARTS
}
# A decoder like Llama.
DECODER_TENSORS: Final[TensorTable] = {
    **EMBEDDING_TENSORS,
    "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight",
    **ATTENTION_TENSORS,
    "layers.{}.ffn_norm.weight": "blk.{}.ffn_norm.weight",
    **MLP_TENSORS,
}
# Queries and keys whose rows llama.cpp's converter permutes.
PERMUTED_QK_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}.{part}": StoredAs(f"blk.{{}}.attn_{name}.{part}", PermuteRotary())
    for name in "qk"
    for part in PARTS
}
# Norms of each head of queries and keys.
HEAD_NORM_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}_norm.weight": f"blk.{{}}.attn_{name}_norm.weight" for name in "qk"
}
# Norms of the outputs of attention and of the feed-forward block.
POST_NORM_TENSORS: Final[TensorTable] = {
    "layers.{}.attn_post_norm.weight": "blk.{}.post_attention_norm.weight",
    "layers.{}.ffn_post_norm.weight": "blk.{}.post_ffw_norm.weight",
}
# The norm in front of the feed-forward block, in architectures that name it after what it follows.
POST_ATTENTION_AS_FFN_NORM: Final[TensorTable] = {"layers.{}.ffn_norm.weight": "blk.{}.post_attention_norm.weight"}
# Biases of layer norms.
NORM_BIAS_TENSORS: Final[TensorTable] = {
    "output_norm.bias": "output_norm.bias",
    "layers.{}.attn_norm.bias": "blk.{}.attn_norm.bias",
    "layers.{}.ffn_norm.bias": "blk.{}.ffn_norm.bias",
}
# Queries, keys and values in one tensor.
FUSED_QKV_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}.{part}": StoredAs(f"blk.{{}}.attn_qkv.{part}", TakeRows(rows))
    for name, rows in QKV_ROWS.items()
    for part in PARTS
}
# The gate and the up projection in one tensor.
FUSED_GATE_UP_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.ffn_{name}.weight": StoredAs("blk.{}.ffn_up.weight", TakeRows(rows))
    for name, rows in GATE_UP_ROWS.items()
}
# The expert that all tokens pass.
SHARED_EXPERT_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.ffn_{name}_shexp.weight": f"blk.{{}}.ffn_{name}_shexp.weight" for name in ("gate", "up", "down")
}
# The bias that is added to the router's scores when experts are chosen; some files have it as a matrix of one row.
CHOICE_BIAS_TENSORS: Final[TensorTable] = {
    CHOICE_BIAS: StoredAs("blk.{}.exp_probs_b.bias", Squeeze((0,), optional=True))
}


def expert_tensors(*, has_fused: bool = False, has_single: bool = False) -> TensorTable:
    """Return the router and the experts' stacked matrices.

    has_fused    some files have gates and up projections in one tensor, as llama.cpp's converter writes them on request
    has_single   some files have a tensor for each expert, as those of before April 2024 do
    """
    found: TensorTable = {"layers.{}.ffn_gate_inp.weight": "blk.{}.ffn_gate_inp.weight"}
    for name in ("gate", "up", "down"):
        rows: list[str | StoredAs] = [f"blk.{{}}.ffn_{name}_exps.weight"]
        if has_fused and name != "down":
            rows.append(StoredAs("blk.{}.ffn_gate_up_exps.weight", TakeRows(EXPERT_GATE_UP_ROWS[name], axis=1)))
        if has_single:
            rows.append(StoredAs(f"blk.{{}}.ffn_{name}.{{e}}.weight", Stack()))
        found[f"layers.{{}}.ffn_{name}_exps.weight"] = tuple(rows)
    return found
