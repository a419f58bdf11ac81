"""A feed-forward block that has a layer for itself, in the place of attention."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.blocks.layer import Part
from sporelm.models.blocks.memory import Kept
from sporelm.models.inputs import StepInputs
from sporelm.weights.names import Param


class Alone:
    """A part that makes each row of that row alone; it keeps nothing."""

    memory: Kept = ()

    def __init__(self, part: Part) -> None:
        self.part = part

    def params(self) -> list[Param]:
        return self.part.params()

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return self.part(x, weights)
