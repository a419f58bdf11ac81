"""Modules that take the place of a Hugging Face model's linear layers, gated MLPs and norms."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sporelm.adaptors.torch import gated_mlp, pack, quantize, rms_norm
from sporelm.adaptors.torch.device_kernels import activate

KINDS = ("silu", "gelu_tanh", "gelu")
PROBE_ROWS = 3
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of a number, relative to the largest


class PackedMlp(nn.Module):
    """A gated MLP with packed weights: (activate(x @ gate.T) * (x @ up.T)) @ down.T."""

    gate_proj: Tensor
    up_proj: Tensor
    down_proj: Tensor

    def __init__(self, mlp: Any, format: str, kind: str) -> None:
        super().__init__()
        self.format, self.kind = format, kind
        self.inner = mlp.gate_proj.out_features
        for name in ("gate_proj", "up_proj", "down_proj"):
            weight = getattr(mlp, name).weight
            packed = pack(quantize(weight, format), format, weight.shape)
            self.register_buffer(name, packed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP's results: [..., width] -> [..., width]."""
        return gated_mlp(x, self.gate_proj, self.up_proj, self.down_proj, self.format, self.inner, kind=self.kind)


class RmsNorm(nn.Module):
    """A norm that divides rows by their root mean squares and multiplies them by its weight, plus 1 in some models."""

    def __init__(self, norm: Any, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach() + offset, requires_grad=False) if offset else norm.weight
        self.variance_epsilon = epsilon_of(norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized rows: [..., width] -> [..., width]."""
        return rms_norm(x, self.weight, self.variance_epsilon)


def epsilon_of(norm: Any) -> float:
    """Return a norm's epsilon under either of its names."""
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)) or 0.0)


def looks_like_norm(module: nn.Module) -> bool:
    """Return whether a module has the name and the parts of an RMS norm."""
    is_named = type(module).__name__.endswith("RMSNorm")
    return is_named and isinstance(getattr(module, "weight", None), Tensor)


def looks_like_mlp(module: nn.Module) -> bool:
    """Return whether a module has the parts of a gated MLP."""
    parts = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    return all(isinstance(part, nn.Linear) for part in parts) and callable(getattr(module, "act_fn", None))


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer: torch's, or GPT-2's with its matrix [in, out]."""
    return isinstance(module, nn.Linear | Conv1D)


def matrix_of(module: Any) -> Tensor:
    """Return the matrix [out, in] of a linear layer."""
    matrix: Tensor = module.weight
    return matrix.T if isinstance(module, Conv1D) else matrix


def find_linear_obstacle(module: Any, form: Any) -> str:
    """Return why a linear layer cannot be packed; "" if it can."""
    if type(module) not in (nn.Linear, Conv1D):
        return f"unsupported class {type(module).__name__}"
    if not module.weight.is_floating_point():
        return f"its weight is {module.weight.dtype}"
    if module.weight.device.type == "meta":
        return "its weight is on the meta device and has no values"
    width = matrix_of(module).shape[1]
    if width % form.values:
        return f"rows of {width} numbers are not whole blocks of {form.values} ({form.name})"
    if not torch.isfinite(module.weight).all():
        return "its weight has numbers that are not finite"
    return ""


def find_norm_offset(module: Any) -> tuple[float | None, str]:
    """Return the number that a norm adds to its weight, or None and the reason why it is not ours. Tries it on random
    rows."""
    weight = module.weight
    if weight.dim() != 1:
        return None, f"its weight has {weight.dim()} dimensions"
    x = torch.randn(PROBE_ROWS, len(weight), dtype=weight.dtype, device=weight.device)
    try:
        expected = module(x)
    except Exception as error:  # a forward with other arguments, such as a gate
        return None, f"it takes more than rows ({type(error).__name__})"
    for offset in (0.0, 1.0):
        if is_close(rms_norm(x, weight + offset, epsilon_of(module)), expected):
            return offset, ""
    return None, "its output differs from weight * x / rms(x)"


def find_mlp_kind(module: Any, form: Any) -> tuple[str, str]:
    """Return the activation of a gated MLP that can be packed, or "" and the reason. Tries it on random rows."""
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = getattr(module, name)
        if reason := find_linear_obstacle(layer, form):
            return "", f"{name}: {reason}"
        if layer.bias is not None:
            return "", f"{name} has a bias"
    weight = module.gate_proj.weight
    x = torch.randn(PROBE_ROWS, weight.shape[1], dtype=weight.dtype, device=weight.device)
    expected = module(x)
    gate, up = module.gate_proj(x), module.up_proj(x)
    for kind in KINDS:
        if is_close(module.down_proj(activate(gate, kind) * up), expected):
            return kind, ""
    return "", "its output differs from (activate(gate) * up) @ down with each of " + ", ".join(KINDS)


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Return whether results agree within the roundings of their type."""
    if found.shape != expected.shape:
        return False
    wide = expected.float()
    largest = wide.abs().max().clamp(min=1e-30)
    return bool((found.float() - wide).abs().max() <= TOLERANCES.get(expected.dtype, 1e-5) * largest)
