"""The ops that a model is made of: for each its signature, shape rule and numpy reference, and the graph that records
calls."""

from sporelm.ops.activation import activate, activate_mul, clip, scale, scale_by, softcap, xielu
from sporelm.ops.add_lora import add_lora
from sporelm.ops.altup_streams import (
    altup_correct,
    altup_first,
    altup_predict,
    gaussian_topk,
    merge_streams,
    spread_streams,
    stream,
)
from sporelm.ops.block_conversion import count_nonfinite, dequantize_blocks, quantize_blocks
from sporelm.ops.causal_conv1d import causal_conv1d
from sporelm.ops.collectives import all_gather, all_reduce, argmax_shards, receive, send
from sporelm.ops.cross_attention import cross_attention
from sporelm.ops.disentangled_attention import disentangled_attention
from sporelm.ops.elementwise import add, clamped_swiglu, silu_mul
from sporelm.ops.encoder_attention import encoder_attention
from sporelm.ops.expert_routing import route
from sporelm.ops.expert_slots import cut_slots, join_slots
from sporelm.ops.gated_delta_rule import gated_delta_rule
from sporelm.ops.gated_linear_attention import gated_linear_attention
from sporelm.ops.gated_lru import gated_lru
from sporelm.ops.gated_rms_norm import gated_rms_norm
from sporelm.ops.graph import Call, Graph, Value, trace
from sporelm.ops.image_rows import add_rows, replace_rows
from sporelm.ops.lightning_attn import lightning_attention
from sporelm.ops.linear_experts import combine_experts, linear_experts, linear_experts_silu_mul
from sporelm.ops.linear_heads import linear_heads
from sporelm.ops.logit_selection import argmax, top_k
from sporelm.ops.mean_rows import mean_rows
from sporelm.ops.mla import latent_attention, store_latent
from sporelm.ops.norm import add_layer_norm, add_rms_norm, group_norm, layer_norm, rms_norm
from sporelm.ops.op import ALL, Op
from sporelm.ops.paged_attention import attention, store_kv
from sporelm.ops.quantize_rows import quantize_rows
from sporelm.ops.quantized_linear import linear, linear_activate_mul, linear_group, linear_silu_mul
from sporelm.ops.rotary_embedding import rope, rope_store
from sporelm.ops.row_selection import join_columns, select_columns, select_rows
from sporelm.ops.rwkv_mixing import blend, mix_rows
from sporelm.ops.sampling import (
    choose_allowed,
    draw_tokens,
    edit_logits,
    mask_logits,
    place_tokens,
    take_sampled,
    token_logprobs,
)
from sporelm.ops.selective_scan import selective_scan
from sporelm.ops.sparse_mla import sparse_mla
from sporelm.ops.spec import Spec, Symbol
from sporelm.ops.split_zero_experts import split_zero_experts
from sporelm.ops.ssm_scan import ssm_scan
from sporelm.ops.token_embedding import embedding
from sporelm.ops.topk_indexer import store_rows, topk_indexer
from sporelm.ops.wkv import wkv6, wkv7

__all__ = [
    "ALL",
    "Call",
    "Graph",
    "Op",
    "Spec",
    "Symbol",
    "Value",
    "activate",
    "activate_mul",
    "add",
    "add_layer_norm",
    "add_lora",
    "add_rms_norm",
    "add_rows",
    "all_gather",
    "all_reduce",
    "altup_correct",
    "altup_first",
    "altup_predict",
    "argmax",
    "argmax_shards",
    "attention",
    "blend",
    "causal_conv1d",
    "choose_allowed",
    "clamped_swiglu",
    "clip",
    "combine_experts",
    "count_nonfinite",
    "cross_attention",
    "cut_slots",
    "dequantize_blocks",
    "disentangled_attention",
    "draw_tokens",
    "edit_logits",
    "embedding",
    "encoder_attention",
    "gated_delta_rule",
    "gated_linear_attention",
    "gated_lru",
    "gated_rms_norm",
    "gaussian_topk",
    "group_norm",
    "join_columns",
    "join_slots",
    "latent_attention",
    "layer_norm",
    "lightning_attention",
    "linear",
    "linear_activate_mul",
    "linear_experts",
    "linear_experts_silu_mul",
    "linear_group",
    "linear_heads",
    "linear_silu_mul",
    "mask_logits",
    "mean_rows",
    "merge_streams",
    "mix_rows",
    "place_tokens",
    "quantize_blocks",
    "quantize_rows",
    "receive",
    "replace_rows",
    "rms_norm",
    "rope",
    "rope_store",
    "route",
    "scale",
    "scale_by",
    "select_columns",
    "select_rows",
    "selective_scan",
    "send",
    "silu_mul",
    "softcap",
    "sparse_mla",
    "split_zero_experts",
    "spread_streams",
    "ssm_scan",
    "store_kv",
    "store_latent",
    "store_rows",
    "stream",
    "take_sampled",
    "token_logprobs",
    "top_k",
    "topk_indexer",
    "trace",
    "wkv6",
    "wkv7",
    "xielu",
]
