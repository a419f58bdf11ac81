"""What can be computed: each op's signature, shape rule and numpy meaning, and the graph that records calls of them."""

from sporelm.ops.activation import activate, activate_mul, clip, scale, scale_by, softcap, xielu
from sporelm.ops.altup import (
    altup_correct,
    altup_first,
    altup_predict,
    gaussian_topk,
    merge_streams,
    spread_streams,
    stream,
)
from sporelm.ops.apart import apart_attention
from sporelm.ops.attention import attention, store_kv
from sporelm.ops.blocks import count_nonfinite, dequantize_blocks, quantize_blocks
from sporelm.ops.elementwise import add, clamped_swiglu, silu_mul
from sporelm.ops.experts import combine_experts, linear_experts, linear_experts_silu_mul
from sporelm.ops.gated_lru import gated_lru
from sporelm.ops.gated_norm import gated_rms_norm
from sporelm.ops.graph import Call, Graph, Value, trace
from sporelm.ops.heads import linear_heads
from sporelm.ops.idle import part_idle
from sporelm.ops.latent import latent_attention, store_latent
from sporelm.ops.lightning import lightning_attention
from sporelm.ops.linear import linear, linear_activate_mul, linear_group, linear_silu_mul, quantize_rows
from sporelm.ops.lora import add_lora
from sporelm.ops.norm import add_layer_norm, add_rms_norm, group_norm, layer_norm, rms_norm
from sporelm.ops.op import ALL, Op
from sporelm.ops.recurrent import causal_conv1d, gated_delta_rule, ssm_scan
from sporelm.ops.rope import rope, rope_store
from sporelm.ops.routing import route
from sporelm.ops.rows import argmax, embedding, join_columns, select_columns, select_rows, top_k
from sporelm.ops.rwkv import blend, gated_linear_attention, mix_rows, wkv6, wkv7
from sporelm.ops.selective import selective_scan
from sporelm.ops.slots import cut_slots, join_slots
from sporelm.ops.sparse import choose_slots, chosen_attention, store_rows
from sporelm.ops.spec import Spec, Symbol
from sporelm.ops.texts import mean_rows, text_attention

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
    "altup_correct",
    "altup_first",
    "altup_predict",
    "apart_attention",
    "argmax",
    "attention",
    "blend",
    "causal_conv1d",
    "choose_slots",
    "chosen_attention",
    "clamped_swiglu",
    "clip",
    "combine_experts",
    "count_nonfinite",
    "cut_slots",
    "dequantize_blocks",
    "embedding",
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
    "mean_rows",
    "merge_streams",
    "mix_rows",
    "part_idle",
    "quantize_blocks",
    "quantize_rows",
    "rms_norm",
    "rope",
    "rope_store",
    "route",
    "scale",
    "scale_by",
    "select_columns",
    "select_rows",
    "selective_scan",
    "silu_mul",
    "softcap",
    "spread_streams",
    "ssm_scan",
    "store_kv",
    "store_latent",
    "store_rows",
    "stream",
    "text_attention",
    "top_k",
    "trace",
    "wkv6",
    "wkv7",
    "xielu",
]
