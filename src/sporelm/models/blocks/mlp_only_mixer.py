"""A layer with only a feed-forward block."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.blocks.block_memory import BlockMemory
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class MLPOnlyMixer:
    """A feed-forward block in place of attention; it has no memory."""

    memory: BlockMemory = ()

    def __init__(self, block: RowBlock) -> None:
        self.block = block

    def params(self) -> list[Param]:
        return self.block.params()

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return self.block(x, weights)
