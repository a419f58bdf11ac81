"""Our attention in transformers' `AttentionInterface`."""

from typing import Any

from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from sporelm.adaptors.torch import attention

# Arguments that change the scores in ways that our attention does not know.
FOREIGN_ARGUMENTS = ("softcap", "s_aux", "position_bias")


def register_attention(name: str) -> None:
    """Register our attention, and the masks that it takes, under a name."""
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)


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
    if dropout or any(options.get(name) is not None for name in FOREIGN_ARGUMENTS):
        mixed, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
        )
        return mixed, None
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    return attention(query, key, value, mask, scale=scale, is_causal=bool(causal)), None
