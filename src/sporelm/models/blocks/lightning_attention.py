"""Lightning attention: linear attention with a decay for each head (MiniMax 2025)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

EPS = 1e-6  # of its norm, independent of the model's, as in transformers and in MiniMax's code


def decay_table_name(layer: int) -> str:
    """Return the name of a layer's table of decays, float32 [heads]: the factors of its state for each row."""
    return f"layers.{layer}.lightning.decays"


def decays_of_layer(config: ModelConfig, layer: int) -> NDArray[np.float32]:
    """Return the decays of a layer: exp(-slope), with ALiBi's slopes, which fall from layer to layer."""
    slopes = 2.0 ** (-8 / config.heads * np.arange(1, config.heads + 1))
    factor = 1 - layer / (config.layers - 1 + 1e-5) + 1e-5
    return np.exp(-slopes * factor).astype(np.float32)


class LightningAttention:
    """o(norm(lightning(silu(qkv(x)))) * sigmoid(gate(x))), in place of attention."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        name, width, dim = f"layers.{layer}", config.width, config.head_dim
        inner = config.heads * dim
        self.decays, self.inner = decay_table_name(layer), inner
        self.qkv = Linear(f"{name}.lightning_qkv", 3 * inner, width)
        self.gate = Linear(f"{name}.lightning_gate", inner, width)
        self.o = Linear(f"{name}.lightning_o", width, inner)
        self.norm = Param(f"{name}.lightning_norm.weight", (inner,))
        self.memory = State(((inner, dim),))

    def params(self) -> list[Param]:
        return [*(param for linear in (self.qkv, self.gate, self.o) for param in linear.params()), self.norm]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        qkv, gate = apply_linears(x, weights, self.qkv, self.gate)
        sequences = step.starts, step.lengths, step.states
        mixed = ops.lightning_attention(ops.activate(qkv, kind="silu"), weights[self.decays], cache[0], *sequences)
        options: dict[str, Any] = {"eps": EPS, "group": self.inner, "first": "norm", "activation": "sigmoid"}
        return self.o(ops.gated_rms_norm(mixed, gate, weights[self.norm.name], **options), weights)
