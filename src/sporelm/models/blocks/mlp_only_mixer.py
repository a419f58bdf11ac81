"""A feed-forward block that has a layer for itself, in the place of attention."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.blocks.block_memory import BlockMemory
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class MLPOnlyMixer:
    """A part that makes each row of that row alone; it keeps nothing."""

    memory: BlockMemory = ()

    def __init__(self, part: RowBlock) -> None:
        self.part = part

    def params(self) -> list[Param]:
        return self.part.params()

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return self.part(x, weights)
