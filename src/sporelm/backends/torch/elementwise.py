"""Elementwise ops through plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.silu_mul, is_narrow=True)
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate).mul_(up)  # if narrow, rounded twice: float32 copies of gate and up would double its time


@implements(ops.add, is_narrow=True)
def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@implements(ops.clamped_swiglu)
def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate / (1 + torch.exp(-alpha * gate)))
