"""The gated feed-forward block (SwiGLU and other GLU variants, Shazeer 2020)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear, apply_linears, scale_rows
from sporelm.models.config import ModelConfig
from sporelm.models.params import Columns, Param, Rows


class GatedMLP:
    """down(activation(gate(x)) * up(x)); `part` is a suffix of the names of its weights, `ffn` its width if not the
    model's.

    down_bias   `down` has a bias, even if the model has none elsewhere
    above       Gaussian top-k: only the excess of a gate over its mean plus this number of standard deviations counts
    factors     of the outputs of `gate` and `down`
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        activation: str = "silu",
        *,
        part: str = "",
        ffn: int = 0,
        down_bias: bool = False,
        factors: tuple[float, float] = (1.0, 1.0),
        above: float | None = None,
    ) -> None:
        width, ffn, bias = config.width, ffn or config.ffn, config.mlp_bias
        self.gate = Linear(f"{name}.ffn_gate{part}", ffn, width, bias=bias, split=Rows())
        self.up = Linear(f"{name}.ffn_up{part}", ffn, width, bias=bias, split=Rows())
        self.down = Linear(f"{name}.ffn_down{part}", width, ffn, bias=bias or down_bias, split=Columns())
        self.activation, self.factors, self.above = activation, factors, above

    def params(self) -> list[Param]:
        return [*self.gate.params(), *self.up.params(), *self.down.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        gate, up = apply_linears(x, weights, self.gate, self.up)
        gate = scale_rows(gate, self.factors[0])
        gate = gate if self.above is None else ops.gaussian_topk(gate, factor=self.above)
        is_silu = self.activation == "silu"
        inner = ops.silu_mul(gate, up) if is_silu else ops.activate_mul(gate, up, kind=self.activation)
        return scale_rows(self.down(inner, weights), self.factors[1])
