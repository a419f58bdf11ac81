"""RWKV's layer: a time mix and a channel mix. Both also read the previous row."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import Memory, list_memories
from sporelm.models.blocks.layer import Layer, Mixer, RowBlock
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class RwkvLayer(Layer):
    """x + time(norm(x)), then x + channel(norm(x)); the result is multiplied by `scale`."""

    def __init__(
        self, time_norm: RowBlock, time: Mixer, channel_norm: RowBlock, channel: Mixer, *, scale: float = 1.0
    ) -> None:
        super().__init__(time_norm, time, scale=scale)
        self.time_norm, self.channel_norm, self.channel = time_norm, channel_norm, channel

    def params(self) -> list[Param]:
        return [*super().params(), *self.channel_norm.params(), *self.channel.params()]

    def memory(self) -> tuple[Memory, ...]:
        return (*list_memories(self.attention.memory), *list_memories(self.channel.memory))

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        mixed = self.attention(self.time_norm(x, weights), step, weights, caches[0])
        return self.channels(ops.add(x, mixed), step, weights, *caches[1:])

    def with_values(
        self, x: Any, values: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any
    ) -> tuple[Any, Any]:
        """Return the rows and the first layer's values [tokens, width], which all time mixes of RWKV-7 read."""
        mixed, values = self.attention(self.time_norm(x, weights), step, weights, caches[0], values)
        return self.channels(ops.add(x, mixed), step, weights, *caches[1:]), values

    def channels(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:
        """Return x + channel(norm(x)), scaled."""
        return self._scaled(ops.add(x, self.channel(self.channel_norm(x, weights), step, weights, *caches)))
