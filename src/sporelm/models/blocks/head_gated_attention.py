"""Attention with a gate for each head, a projection of the input row."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.linear import Linear
from sporelm.models.config import ModelConfig
from sporelm.models.params import Rows

GATE_COLUMNS = "head_gate_columns."  # prefix of tables, by the number of heads: the head of each output column


def head_tables(head_dim: int, counts: Iterable[int]) -> dict[str, np.ndarray]:
    """Return the tables of layers with these numbers of heads: int32 [heads * head_dim]."""
    return {f"{GATE_COLUMNS}{count}": np.repeat(np.arange(count, dtype=np.int32), head_dim) for count in counts}


class HeadGatedAttention(Attention):
    """Attention with normed heads; the output of a head is multiplied by an activation of one number (StepFun 2026).

    kind            the activation
    is_elementwise  one gate for each channel of a head, not one for each head (poolside 2026)
    """

    def __init__(
        self, name: str, config: ModelConfig, window: int | None, kind: str, *, is_elementwise: bool = False
    ) -> None:
        super().__init__(name, config, window, norm="heads")
        numbers = config.head_dim if is_elementwise else 1
        group = config.heads // config.kv_heads
        cut = Rows(group * numbers, group)
        self.gate = [Linear(f"{name}.attn_gate", config.heads * numbers, config.width, split=cut)]
        self.kind, self.gate_columns = kind, "" if is_elementwise else f"{GATE_COLUMNS}{config.heads}"

    def _apply_gate(self, mixed: Any, gate: Any, weights: Mapping[str, Any]) -> Any:
        if not self.gate_columns:
            return ops.activate_mul(gate, mixed, kind=self.kind)
        shares = ops.select_columns(ops.activate(gate, kind=self.kind), weights[self.gate_columns])
        return ops.activate_mul(shares, mixed, kind="linear")
