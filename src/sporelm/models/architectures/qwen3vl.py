"""Qwen3-VL, its text model: Qwen3 with interleaved multimodal RoPE, whose three positions are equal in texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig, grid_positions
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.rotary import turns
from sporelm.models.tower_inputs import ImageInput


@architecture("qwen3vl", Qwen2VLConfig)
class Qwen3VL(Decoder[Qwen2VLConfig]):
    """Qwen3's layer, or the same with a mixture of experts (Bai et al. 2025)."""

    has_rope_positions = True

    def layer(self, config: Qwen2VLConfig, index: int) -> Layer:
        name, streams = f"layers.{index}", turns(config.mrope_section)
        attention = Attention(name, config, config.window_of(index), norm="heads", streams=streams)
        return pre_norm(config, index, attention)

    @property
    def image_columns(self) -> int:
        return self.config.width * (1 + self.config.deepstack_layers)

    def image_positions(self, image: ImageInput) -> NDArray[np.int32]:
        return grid_positions(image)

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        """Return x [tokens, width] after all layers. The first ones add a level of the tower's features to rows of
        images (DeepStack, Meng et al. 2024)."""
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(x, step, weights, cache)
            if step.image_rows is not None and index < self.config.deepstack_layers:
                first = (index + 1) * self.config.width
                x = ops.add_rows(x, step.image_values, step.image_rows, first=first)
        return x
