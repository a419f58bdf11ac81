"""Two mixers in parallel (Falcon-H1, TII 2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import Memory, list_memories
from sporelm.models.blocks.layer import Mixer
from sporelm.models.blocks.linear import scale_rows
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class ParallelMixers:
    """first(a x) b + second(x) c.

    in_factor     a
    out_factors   b and c
    """

    def __init__(
        self, first: Mixer, second: Mixer, *, in_factor: float = 1.0, out_factors: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self.first, self.second, self.in_factor, self.out_factors = first, second, in_factor, out_factors

    @property
    def memory(self) -> tuple[Memory, ...]:
        return *list_memories(self.first.memory), *list_memories(self.second.memory)

    def params(self) -> list[Param]:
        return [*self.first.params(), *self.second.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        count = len(list_memories(self.first.memory))
        first = self.first(scale_rows(x, self.in_factor), step, weights, *caches[:count])
        second = self.second(x, step, weights, *caches[count:])
        return ops.add(scale_rows(first, self.out_factors[0]), scale_rows(second, self.out_factors[1]))
