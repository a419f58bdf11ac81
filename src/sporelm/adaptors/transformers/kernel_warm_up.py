"""Loads the kernels of a model before its weights are packed.

LLVM's loader wants a kernel's code within 2 GB of its constants, and places both where the process has room. After
gigabytes of weights were allocated in between, it may find room for one of them only far away, and ends the process.
"""

from typing import Any

import torch

from sporelm.adaptors.torch import attention, experts, gated_mlp, linear, pack, quantize, rms_norm, rotary

WIDTH = 64  # of tiny weights, or one block of the format if that is more
ROWS = (1, 3, 40)  # one, few and many rows have kernels of their own


def load_kernels(model: Any, form: Any) -> None:
    """Run each op once for each number of rows, on tiny weights of a format and with the model's heads."""
    width = max(WIDTH, form.values)
    weight = torch.zeros(width, width)
    packed = pack(quantize(weight, form.name), form.name, weight.shape)
    kinds = {"silu", "gelu", "gelu_tanh"} if not hasattr(model.config, "hidden_act") else {_kind_of(model.config)}
    for rows in ROWS:
        x = torch.zeros(rows, width)
        linear(x, packed, form.name, weight.shape)
        linear(x, packed, form.name, weight.shape, torch.zeros(width))
        rms_norm(x, torch.ones(width), 1e-5)
        for kind in kinds:
            gated_mlp(x, packed, packed, packed, form.name, width, kind=kind)
    if any(hasattr(module, "gate_up_proj") for module in model.modules()):
        stacked = torch.zeros(2, width, width)
        both = pack(quantize(stacked, form.name), form.name, stacked.shape)
        for rows in ROWS:
            ids, weights = torch.zeros(rows, 2, dtype=torch.int32), torch.ones(rows, 2)
            experts(torch.zeros(rows, width), both, both, both, ids, weights, form.name, stacked.shape)
    _load_heads(model.config)


def _kind_of(config: Any) -> str:
    name = str(config.hidden_act)
    return "gelu_tanh" if "tanh" in name or name == "gelu_new" else "gelu" if "gelu" in name else "silu"


def _load_heads(config: Any) -> None:
    """Run attention and rotation with the heads of a configuration, if it says how they are."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads, width = getattr(config, "num_attention_heads", None), getattr(config, "hidden_size", None)
    if not isinstance(heads, int) or not isinstance(width, int):
        return
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or width // heads
    if head_dim % 2:
        return
    for rows in (1, 5):
        q, k = torch.zeros(1, heads, rows, head_dim), torch.zeros(1, kv_heads, rows, head_dim)
        attention(q, k, k, scale=1.0)
        half = torch.zeros(1, rows, head_dim // 2)
        rotary(q.transpose(1, 2), half, half)
        rotary(k.transpose(1, 2), half, half)
