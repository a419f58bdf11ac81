"""Feed-forward blocks with clipped gates and up projections, dense and as experts (StepFun 2026)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.linear import apply_linears
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.config import ModelConfig

MIN_LIMIT = 0.28  # SiLU is never below -0.2785, so that clipping on both sides clips it only above


def clip_swiglu(gate: Any, up: Any, limit: float) -> Any:  # gate, up [tokens, width] or [tokens, k, width]
    """Return silu(gate), at most `limit`, times up, clipped to -limit .. limit. A limit of 0 does not clip."""
    if not limit:
        return ops.silu_mul(gate, up)
    activated = ops.clip(ops.activate(gate, kind="silu"), limit=limit)
    return ops.activate_mul(activated, ops.clip(up, limit=limit), kind="linear")


class ClampedMLP(GatedMLP):
    """The gated block with a limit."""

    def __init__(self, name: str, config: ModelConfig, limit: float, *, part: str = "", ffn: int = 0) -> None:
        super().__init__(name, config, part=part, ffn=ffn)
        self.limit = limit

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        gate, up = apply_linears(x, weights, self.gate, self.up)
        return self.down(clip_swiglu(gate, up, self.limit), weights)


class ClampedMixture(Mixture):
    """Experts with a limit; the shared expert has a limit of its own."""

    def __init__(self, name: str, config: ModelConfig, limit: float, shared_limit: float) -> None:
        super().__init__(name, config)
        self.limit = limit
        if self.experts.shared_width:
            self.shared = ClampedMLP(name, config, shared_limit, part="_shexp", ffn=self.experts.shared_width)

    def _inner(self, x: Any, weights: Mapping[str, Any], ids: Any) -> Any:
        return clip_swiglu(self.gates[0](x, weights, ids), self.up(x, weights, ids), self.limit)
