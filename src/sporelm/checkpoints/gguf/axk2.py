"""GGUF files of A.X K2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.gguf.deepseek32 import DEEPSEEK32_KEYS, DEEPSEEK32_TENSORS
from sporelm.checkpoints.gguf_tensors import expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import SparseGgufSchema
from sporelm.models.architectures.axk2 import AXK2
from sporelm.models.config import MAX_WIDTH

# Norms with a gate -> their names in files.
GATED_NORMS: Final = {"attn_norm": "attn_norm", "ffn_gated_norm": "ffn_norm"}


@register
class Axk2Gguf(SparseGgufSchema):
    """`axk2`."""

    names = ("axk2",)
    architecture = AXK2
    keys = (*DEEPSEEK32_KEYS, Key("gated_norm_rank", "attention.norm_rank", "u32", 1, MAX_WIDTH))
    tensors = {
        **DEEPSEEK32_TENSORS,
        **expert_tensors(),
        **{
            f"layers.{{}}.{name}{end}.weight": f"blk.{{}}.{stored}{end}.weight"
            for name, stored in GATED_NORMS.items()
            for end in ("", "_a", "_b")
        },
        **{f"layers.{{}}.attn_{name}.weight": f"blk.{{}}.attn_{name}.weight" for name in ("q_b", "gate")},
    }
