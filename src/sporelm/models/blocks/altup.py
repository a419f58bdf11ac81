"""Alternating updates (AltUp, Baykal et al. 2023) and a learned residual of low rank (LAuReL, Menghani et al. 2024), as
Gemma 3n has them: rows are several streams, a layer computes with the first and corrects the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm import ops
from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.per_layer_inputs import PerLayerInput, SharedKVLayer
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.shared_kv_attention import SharedKVAttention
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

HALF = 0.5**0.5
LAYER = "layers.{}."
# GGUF: llama.cpp's llama-arch.cpp. Hugging Face: the state dict of Gemma3nForCausalLM.
ALTUP_NAMES: Table = tuple(
    Names(f"{LAYER}{ours}.weight", f"blk.{{}}.{gguf}.weight", f"model.layers.{{}}.{hf}")
    for ours, gguf, hf in (
        ("altup_router", "altup_router", "altup.modality_router.weight"),
        ("altup_router_norm", "altup_router_norm", "altup.router_norm.weight"),
        ("altup_predict", "altup_predict_coef", "altup.prediction_coefs.weight"),
        ("altup_correct", "altup_correct_coef", "altup.correction_coefs.weight"),
        ("altup_scale", "altup_correct_scale", "altup.correct_output_scale"),
        ("laurel_left", "laurel_l", "laurel.linear_left.weight"),
        ("laurel_right", "laurel_r", "laurel.linear_right.weight"),
        ("laurel_norm", "laurel_post_norm", "laurel.post_laurel_norm.weight"),
    )
)


def spread_names(streams: int) -> Table:
    """Names of what makes the other streams, and of what they are merged by: matrices of one tensor in GGUF files."""
    return tuple(
        Names(
            f"{ours}_{number}.weight",
            Stored(f"{gguf}.weight", part=number, parts=streams - 1),
            f"model.{hf}.{number}.weight",
        )
        for ours, gguf, hf in (
            ("altup_spread", "altup_proj", "altup_projections"),
            ("altup_merge", "altup_unembd_proj", "altup_unembed_projections"),
        )
        for number in range(streams - 1)
    )


class AltUpStreams:
    """Streams of rows: the row itself, and products of it as large as it is; and one row of them again."""

    def __init__(self, config: ModelConfig, streams: int) -> None:
        width = config.width
        self.spread, self.merge = (
            [Linear(f"altup_{part}_{number}", width, width) for number in range(streams - 1)]
            for part in ("spread", "merge")
        )

    def params(self) -> list[Param]:
        return [param for each in (*self.spread, *self.merge) for param in each.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        """float32 [tokens, streams, width]."""
        return ops.spread_streams(x, tuple(each(x, weights) for each in self.spread))

    def merged(self, x: Any, rows: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, streams, width]
        """One row for each of those that are wanted: float32 [rows, width]."""
        first, *others = (ops.select_rows(ops.stream(x, index=index), rows) for index in range(1 + len(self.merge)))
        return ops.merge_streams(
            first, tuple(each(other, weights) for each, other in zip(self.merge, others, strict=True))
        )


class Laurel:
    """x + norm(right(left(x)))."""

    def __init__(self, name: str, config: ModelConfig, rank: int) -> None:
        self.left = Linear(f"{name}.laurel_left", rank, config.width)
        self.right = Linear(f"{name}.laurel_right", config.width, rank)
        self.norm = RMSNorm(f"{name}.laurel_norm", config.width, config.eps)

    def params(self) -> list[Param]:
        return [*self.left.params(), *self.right.params(), *self.norm.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return ops.add(x, self.norm(self.right(self.left(x, weights), weights), weights))


class AltUpLayer(SharedKVLayer):
    """Predicts all streams, computes attention and the feed-forward block with the first, and corrects all by what that
    gives; then the layer's row joins the streams but the first."""

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
        """norms: before attention and behind it, then before the feed-forward block and behind it."""
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
        """x [tokens, streams, width] -> the predictions, of that shape, and what the layer found [tokens, width]."""
        predicted = ops.altup_predict(x, self.predict(self._modalities(ops.stream(x, index=0), weights), weights))
        first = ops.stream(predicted, index=0)
        before, behind, before_mlp, behind_mlp = self.norms
        read = before(first, weights)
        mixed = ops.add(first, behind(self.attention(read, step, weights, cache), weights))
        both = ops.scale(ops.add(mixed, self.laurel(read, weights)), factor=HALF)
        assert self.mlp is not None
        return predicted, ops.add(both, behind_mlp(self.mlp(before_mlp(both, weights), weights), weights))

    def fed(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:
        predicted, found = x
        coefs = self.correct(self._modalities(found, weights), weights)
        first = ops.altup_first(predicted, found, coefs, weights[self.first.name])
        return ops.altup_correct(predicted, found, coefs, self.row.made(first, row, weights))

    def _modalities(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """What a row is, in as many numbers as there are streams: float32 [tokens, streams], from -1 to 1."""
        routed = self.router(self.router_norm(x, weights), weights)
        return ops.softcap(ops.scale(routed, factor=1 / self.width), cap=1.0)
