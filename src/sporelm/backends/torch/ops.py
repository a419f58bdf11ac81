"""Each op through plain torch: its numpy meaning, on tensors of whatever device they lie on.

Nothing here names a device or knows of back-ends, and nothing waits for one but prompts of models with experts (see
`experts.py`). Indices may be int32. Shapes are those of the meanings in `sporelm.ops`.
"""

from sporelm.backends.torch.altup import (
    altup_correct,
    altup_first,
    altup_predict,
    gaussian_topk,
    merge_streams,
    spread_streams,
    stream,
)
from sporelm.backends.torch.attention import attention, rope, rope_store
from sporelm.backends.torch.cache import store_kv
from sporelm.backends.torch.experts import combine_experts, linear_experts, linear_experts_silu_mul, part_idle, route
from sporelm.backends.torch.latent import latent_attention, linear_heads, store_latent
from sporelm.backends.torch.products import (
    add_lora,
    linear,
    linear_group,
    linear_silu_mul,
    quantize_rows,
    silu_mul,
)
from sporelm.backends.torch.recurrent import (
    causal_conv1d,
    gated_delta_rule,
    gated_rms_norm,
    lightning_attention,
    ssm_scan,
)
from sporelm.backends.torch.rows import (
    activate,
    activate_mul,
    add,
    add_layer_norm,
    add_rms_norm,
    argmax,
    clamped_swiglu,
    clip,
    count_nonfinite,
    cut_slots,
    embedding,
    join_columns,
    join_slots,
    layer_norm,
    linear_activate_mul,
    rms_norm,
    scale,
    scale_by,
    select_columns,
    select_rows,
    softcap,
    top_k,
    xielu,
)
from sporelm.backends.torch.rwkv import blend, gated_linear_attention, group_norm, mix_rows, wkv6, wkv7
from sporelm.backends.torch.selective import gated_lru, selective_scan
from sporelm.backends.torch.sparse import choose_slots, chosen_attention, store_rows
from sporelm.backends.torch.texts import apart_attention, mean_rows, text_attention

FUNCTIONS = {
    function.__name__: function
    for function in (
        *(add, silu_mul, clamped_swiglu, rms_norm, add_rms_norm, embedding, select_columns, select_rows, argmax),
        *(join_columns, join_slots, cut_slots, gated_lru),
        *(top_k, quantize_rows, activate, activate_mul, scale, scale_by, clip, softcap, xielu, layer_norm),
        add_layer_norm,
        count_nonfinite,
        *(causal_conv1d, gated_delta_rule, ssm_scan, gated_rms_norm, selective_scan, lightning_attention),
        *(mix_rows, blend, group_norm, wkv7, wkv6, gated_linear_attention),
        *(linear_heads, store_latent, latent_attention),
        *(store_rows, choose_slots, chosen_attention),
        *(route, part_idle, linear_experts, linear_experts_silu_mul, combine_experts),
        *(add_lora, linear, linear_group, linear_silu_mul, linear_activate_mul, rope, store_kv, rope_store, attention),
        *(text_attention, apart_attention, mean_rows),
        *(spread_streams, merge_streams, stream, altup_predict, altup_first, altup_correct, gaussian_topk),
    )
}
