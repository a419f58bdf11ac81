"""All ops, by dlinfer's names."""

from collections.abc import Callable
from typing import Any

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

OPS: dict[str, Callable[..., Any]] = {
    "add_rms_norm": add_rms_norm,
    "add_rms_norm_w8a8": add_rms_norm_w8a8,
    "apply_rotary_pos_emb": apply_rotary_pos_emb,
    "apply_rotary_pos_emb_interleaved": apply_rotary_pos_emb_interleaved,
    "dynamic_quant": dynamic_quant,
    "fill_contiguous_kvcache": fill_contiguous_kvcache,
    "fill_kv_cache": fill_kv_cache,
    "fused_attention": fused_attention,
    "fused_moe": fused_moe,
    "fused_moe_w8a8": fused_moe_w8a8,
    "get_cache_len": get_cache_len,
    "incre_flash_attention": incre_flash_attention,
    "lightning_indexer": lightning_indexer,
    "linear": linear,
    "linear_w8a8": linear_w8a8,
    "linear_w8a8_static": linear_w8a8_static,
    "moe_gating_topk_softmax": moe_gating_topk_softmax,
    "paged_decode_attention": paged_decode_attention,
    "paged_prefill_attention": paged_prefill_attention,
    "prefill_attention": prefill_attention,
    "rms_norm": rms_norm,
    "rms_norm_w8a8": rms_norm_w8a8,
    "silu_and_mul": silu_and_mul,
    "sparse_flash_attention": sparse_flash_attention,
    "transdata": transdata,
    "weight_quant_matmul": weight_quant_matmul,
}
