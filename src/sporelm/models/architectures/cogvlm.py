"""CogVLM and CogVLM2: Llama with a visual expert in every layer (Wang et al. 2023)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, Linear, pre_norm
from sporelm.models.blocks.mixture import ExpertLinear
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Columns, Param, Rows
from sporelm.models.row_kinds import NUM_KINDS
from sporelm.models.tower_inputs import ImageInput

KINDS, SHARES = "row_kinds", "row_shares"  # among the weights of a step: int32 and float32 [tokens, 1]
FIRST_COLUMNS: Final = "first_columns"  # a table: the numbers of the first columns, as many as there are kinds


@dataclass(frozen=True, kw_only=True)
class CogVLMConfig(ModelConfig):
    """The field of CogVLM.

    visual_bias   the visual expert has biases of queries, keys and values (CogVLM2)
    """

    visual_bias: bool = False


class KindLinear(Linear):
    """A product with the matrix of a row's kind."""

    def __init__(
        self, name: str, out: int, width: int, *, bias: bool = False, split: Rows | Columns | None = None
    ) -> None:
        super().__init__(f"{name}_exps", out, width, bias=bias)
        self.experts = ExpertLinear(self.name, (NUM_KINDS, out, width), bias=bias, split=split)

    def params(self) -> list[Param]:
        return self.experts.params()

    def of_ordered(self, x: Any, weights: Mapping[str, Any]) -> Any:
        return ops.combine_experts(self.experts(x, weights, weights[KINDS]), weights[SHARES])


class KindAttention(Attention):
    """Attention with projections of each kind of rows. Rows of a picture share one rotary position."""

    def __init__(self, name: str, config: CogVLMConfig) -> None:
        super().__init__(name, config, streams=(0,) * (config.head_dim // 2))
        linears = {"q": self.q, "k": self.k, "v": self.v}
        self.q, self.k, self.v = (
            KindLinear(linear.name, linear.out, linear.width, bias=config.visual_bias, split=linear.split)
            for linear in linears.values()
        )
        self.o = KindLinear(self.o.name, self.o.out, self.o.width, split=self.o.split)


class KindMLP:
    """A gated feed-forward block of each kind of rows."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.gate, self.up = (
            KindLinear(f"{name}.ffn_{part}", config.ffn, config.width, split=Rows()) for part in ("gate", "up")
        )
        self.down = KindLinear(f"{name}.ffn_down", config.width, config.ffn, split=Columns())

    def params(self) -> list[Param]:
        return [param for linear in (self.gate, self.up, self.down) for param in linear.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        kinds = weights[KINDS]
        gate, up = (linear.experts(x, weights, kinds) for linear in (self.gate, self.up))
        return self.down.of_ordered(ops.silu_mul(gate, up), weights)


@architecture("cogvlm", CogVLMConfig)
class CogVLM(Decoder[CogVLMConfig]):
    """Rows of pictures pass matrices of their own in each layer; attention is over all rows."""

    has_rope_positions = True

    def layer(self, config: CogVLMConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return pre_norm(config, index, KindAttention(name, config), KindMLP(name, config))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return {**super().tables(context), FIRST_COLUMNS: np.arange(NUM_KINDS, dtype=np.int32)}

    @property
    def image_columns(self) -> int:
        return self.config.width + NUM_KINDS

    def image_positions(self, image: ImageInput) -> NDArray[np.int32]:
        """The first row, all patches, and the last row have one position each (`build_position_ids` of the authors'
        code)."""
        positions = np.ones((image.num_rows, 3), np.int32)
        positions[0], positions[-1] = 0, 2
        return positions

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        # Scores are 0 in rows of words: of equal ones, the first expert is taken.
        scores = ops.scale(ops.select_columns(x, weights[FIRST_COLUMNS]), factor=0.0)
        if step.image_rows is not None:
            scores = ops.replace_rows(scores, step.image_values, step.image_rows, first=self.config.width)
        shares, kinds = ops.route(scores, k=1, scores="softmax_of_chosen")
        return super().through(x, step, {**weights, KINDS: kinds, SHARES: shares}, caches)
