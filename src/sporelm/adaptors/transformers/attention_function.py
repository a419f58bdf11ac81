"""Our attention in transformers' `AttentionInterface`."""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from sporelm.adaptors.torch import attention

# Arguments that change the scores in ways that our kernels do not support.
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias")


def register_attention(name: str) -> None:
    """Register our attention, and the masks that it takes, under a name."""
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, create_mask)


def create_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **options: Any,
) -> Tensor | None:
    """Return the mask of transformers' `sdpa_mask`, or None where our attention needs none.

    Without a mask, our rows are the last ones of the keys; those of torch are the first ones. So steps with several
    rows after others need no mask here, and a static cache, whose keys go on behind the rows, needs one.
    """
    can_skip = allow_is_causal_skip
    if can_skip and isinstance(q_offset, int):
        can_skip = q_offset + q_length == kv_offset + kv_length
        in_window = local_size is None or kv_length < local_size
        if can_skip and in_window and not torch.compiler.is_compiling():
            seen = None if attention_mask is None else attention_mask[:, kv_offset : kv_offset + kv_length]
            if seen is None or (seen.shape[-1] == kv_length and bool(seen.all())):
                return None
    elif can_skip and not torch.compiler.is_compiling():
        can_skip = int(q_offset) + q_length == kv_offset + kv_length
    mask: Tensor | None = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=can_skip,
        **options,
    )
    return mask


def find_attention_obstacle(model: Any) -> str:
    """Return why a model's attention cannot be ours; "" if it can."""
    if not hasattr(model, "set_attn_implementation"):
        return "the model has no set_attn_implementation"
    for name, module in model.named_modules():
        if not type(module).__name__.endswith("Attention"):
            continue
        if getattr(module, "attn_logit_softcapping", None):
            return f"{name} caps its scores (attn_logit_softcapping)"
        if getattr(module, "sinks", None) is not None:
            return f"{name} has attention sinks"
    if not getattr(model, "_supports_sdpa", True):
        return "the model's attention takes only its own masks"
    return ""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' own functions do: query [batch, heads, rows, head_dim] -> [batch, rows, heads, head_dim].

    With dropout or arguments that our kernels do not know, transformers' own function computes it.
    """
    if dropout or any(options.get(name) is not None for name in UNSUPPORTED_ARGUMENTS):
        mixed, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
        )
        return mixed, None
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    return attention(query, key, value, mask, scale=scale, is_causal=bool(causal)), None
