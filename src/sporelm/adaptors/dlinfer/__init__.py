"""dlinfer's ops by name and signature, on every torch device; `install()` registers them as the package `dlinfer`.

Signatures are those of dlinfer's main branch (`dlinfer/ops/llm.py`), and those with which LMDeploy 0.18 calls it where
the two differ. Where dlinfer leaves a case to the vendor, the ops follow what its Ascend operators do.
"""

from sporelm.errors import BackendError, install_command

try:
    import torch  # noqa: F401
except ImportError as error:
    raise BackendError(f"torch does not load ({error}); install it: {install_command('torch')}") from error

from sporelm.adaptors.dlinfer.attention_ops import (
    fill_contiguous_kvcache,
    fill_kv_cache,
    fused_attention,
    get_cache_len,
    incre_flash_attention,
    paged_decode_attention,
    paged_prefill_attention,
    prefill_attention,
)
from sporelm.adaptors.dlinfer.expert_ops import fused_moe, fused_moe_w8a8, moe_gating_topk_softmax
from sporelm.adaptors.dlinfer.installation import install, uninstall
from sporelm.adaptors.dlinfer.moe_metadata import MoECommType, MoeMetadata
from sporelm.adaptors.dlinfer.op_table import OPS
from sporelm.adaptors.dlinfer.product_ops import (
    dynamic_quant,
    linear,
    linear_w8a8,
    linear_w8a8_static,
    transdata,
    weight_quant_matmul,
)
from sporelm.adaptors.dlinfer.row_ops import (
    add_rms_norm,
    add_rms_norm_w8a8,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_interleaved,
    rms_norm,
    rms_norm_w8a8,
    silu_and_mul,
)
from sporelm.adaptors.dlinfer.sparse_ops import lightning_indexer, sparse_flash_attention

__all__ = [
    "OPS",
    "MoECommType",
    "MoeMetadata",
    "add_rms_norm",
    "add_rms_norm_w8a8",
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleaved",
    "dynamic_quant",
    "fill_contiguous_kvcache",
    "fill_kv_cache",
    "fused_attention",
    "fused_moe",
    "fused_moe_w8a8",
    "get_cache_len",
    "incre_flash_attention",
    "install",
    "lightning_indexer",
    "linear",
    "linear_w8a8",
    "linear_w8a8_static",
    "moe_gating_topk_softmax",
    "paged_decode_attention",
    "paged_prefill_attention",
    "prefill_attention",
    "rms_norm",
    "rms_norm_w8a8",
    "silu_and_mul",
    "sparse_flash_attention",
    "transdata",
    "uninstall",
    "weight_quant_matmul",
]
