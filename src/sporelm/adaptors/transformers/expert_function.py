"""Our experts in transformers' `ExpertsInterface`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sporelm.adaptors.torch import experts, pack, quantize

PACKED = "_sporelm_packed"  # attribute of a module of experts: format, shape, and the packed gate, up and down


def register_experts(name: str) -> None:
    """Register our experts under a name. Raise ImportError with transformers before 5, which has no such registry."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(name, run_experts)


def find_expert_obstacle(module: Any, form: Any) -> str:
    """Return why a module of experts cannot be packed; "" if it can."""
    gate_up, down = module.gate_up_proj, module.down_proj
    traits = {
        "its weights are transposed": getattr(module, "is_transposed", True),
        "its experts have biases": getattr(module, "has_bias", True),
        "its experts have no gate": not getattr(module, "has_gate", False),
        "gate and up are interleaved": not getattr(module, "is_concatenated", False),
        "its experts have a norm": getattr(module, "has_post_expert_norm", False),
        "its experts are spread over devices": getattr(module, "_is_expert_parallel", False),
    }
    for reason, holds in traits.items():
        if holds:
            return reason
    if not isinstance(gate_up, Tensor) or gate_up.dim() != 3 or not gate_up.is_floating_point():
        return "its weights are not stacked matrices of floats"
    for name, matrix in (("gate_up_proj", gate_up), ("down_proj", down)):
        if matrix.shape[-1] % form.values:
            return f"{name}: rows of {matrix.shape[-1]} numbers are not whole blocks of {form.values} ({form.name})"
    x = torch.linspace(-4, 4, 2 * 16).unsqueeze(0)
    gate, up = x.chunk(2, dim=-1)
    if not torch.allclose(module._apply_gate(x), torch.nn.functional.silu(gate) * up, atol=1e-5):
        return "its gate is not silu(gate) * up"
    return ""


def pack_experts(module: Any, format: str, keep_originals: bool) -> Callable[[], None]:
    """Pack the matrices of a module of experts. Return the function that drops the packed ones.

    Originals that are not kept become tensors of the same shapes on the meta device, which takes no memory.
    """
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    count, double, width = gate_up.shape
    shape = (count, double // 2, width)
    gate, up = (each.contiguous() for each in gate_up.chunk(2, dim=1))
    packed = [pack(quantize(each, format), format, each.shape) for each in (gate, up, down.contiguous())]
    setattr(module, PACKED, (format, shape, *packed))
    if not keep_originals:
        for name in ("gate_up_proj", "down_proj"):
            empty = torch.nn.Parameter(getattr(module, name).detach().to("meta"), requires_grad=False)
            setattr(module, name, empty)
    return lambda: delattr(module, PACKED)


def run_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return each token's sum over its experts: [tokens, width] -> [tokens, width]."""
    format, shape, gate, up, down = getattr(module, PACKED)
    return experts(hidden_states, gate, up, down, top_k_index, top_k_weights, format, shape)
