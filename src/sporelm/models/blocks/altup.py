"""Alternating updates (AltUp, Baykal et al. 2023) and a learned residual of low rank (LAuReL, Menghani et al. 2024), as
in Gemma 3n. Rows have several streams; a layer computes with the first one and corrects the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.per_layer_inputs import PerLayerInput, SharedKVLayer
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.shared_kv_attention import SharedKVAttention
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

HALF = 0.5**0.5


class AltUpStreams:
    """The streams of a row: the row itself, and projections of it of the same magnitude. `merge` makes one row of them
    again."""

    def __init__(self, config: ModelConfig, streams: int) -> None:
        width = config.width
        self.projections, self.unembed_projections = (
            [Linear(f"altup_{part}_{number}", width, width) for number in range(streams - 1)]
            for part in ("spread", "merge")
        )

    def params(self) -> list[Param]:
        return [param for each in (*self.projections, *self.unembed_projections) for param in each.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        """Return the streams: float32 [tokens, streams, width]."""
        return ops.spread_streams(x, tuple(each(x, weights) for each in self.projections))

    def merge(self, x: Any, rows: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, streams, width]
        """Return the merged streams of the requested rows: float32 [rows, width]."""
        first, *others = (
            ops.select_rows(ops.stream(x, index=index), rows) for index in range(1 + len(self.unembed_projections))
        )
        return ops.merge_streams(
            first, tuple(each(other, weights) for each, other in zip(self.unembed_projections, others, strict=True))
        )


class Laurel:
    """x + norm(linear_right(linear_left(x)))."""

    def __init__(self, name: str, config: ModelConfig, rank: int) -> None:
        self.linear_left = Linear(f"{name}.laurel_left", rank, config.width)
        self.linear_right = Linear(f"{name}.laurel_right", config.width, rank)
        self.norm = RMSNorm(f"{name}.laurel_norm", config.width, config.eps)

    def params(self) -> list[Param]:
        return [*self.linear_left.params(), *self.linear_right.params(), *self.norm.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return ops.add(x, self.norm(self.linear_right(self.linear_left(x, weights), weights), weights))


class AltUpLayer(SharedKVLayer):
    """A layer that predicts all streams, computes attention and the feed-forward block with the first, and corrects all
    of them by the result. The layer's row then joins all streams but the first."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        streams: int,
        laurel: Laurel,
        row: PerLayerInput,
        norms: Sequence[RowBlock],
        attention: SharedKVAttention,
        mlp: RowBlock,
    ) -> None:
        """norms: before and after attention, then before and after the feed-forward block."""
        super().__init__(norms[0], attention, norms[2], mlp, after_attention=norms[1], after_mlp=norms[3])
        self.norms, self.laurel, self.row, self.width = norms, laurel, row, config.width
        self.router = Linear(f"{name}.altup_router", streams, config.width)
        self.router_norm = RMSNorm(f"{name}.altup_router_norm", config.width, config.eps)
        self.predict = Linear(f"{name}.altup_predict", streams * streams, streams)
        self.correct = Linear(f"{name}.altup_correct", streams, streams)
        self.first = Param(f"{name}.altup_scale.weight", (config.width,))

    def params(self) -> list[Param]:
        own = (self.router, self.router_norm, self.predict, self.correct, self.laurel, self.row)
        return [*super().params(), *(param for part in own for param in part.params()), self.first]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:
        """Return the predictions for x [tokens, streams, width], of that shape, and the output of the blocks [tokens,
        width]."""
        predicted = ops.altup_predict(x, self.predict(self._modalities(ops.stream(x, index=0), weights), weights))
        first = ops.stream(predicted, index=0)
        before_attention, after_attention, before_mlp, after_mlp = self.norms
        read = before_attention(first, weights)
        mixed = ops.add(first, after_attention(self.attention(read, step, weights, cache), weights))
        both = ops.scale(ops.add(mixed, self.laurel(read, weights)), factor=HALF)
        assert self.mlp is not None
        return predicted, ops.add(both, after_mlp(self.mlp(before_mlp(both, weights), weights), weights))

    def apply_row(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:
        predicted, found = x
        coefs = self.correct(self._modalities(found, weights), weights)
        first = ops.altup_first(predicted, found, coefs, weights[self.first.name])
        return ops.altup_correct(predicted, found, coefs, self.row.compute(first, row, weights))

    def _modalities(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """Return the router's coefficient of each stream, from -1 to 1: float32 [tokens, streams]."""
        routed = self.router(self.router_norm(x, weights), weights)
        return ops.softcap(ops.scale(routed, factor=1 / self.width), cap=1.0)
