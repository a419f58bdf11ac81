"""Encoders with learned relative position biases, one per head and distance bucket, shared by all layers (T5,
MPNet)."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sporelm.models.distances import BUCKETS, spread_biases
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.inputs import BIASES
from sporelm.models.params import Param

DISTANCE_BIASES: Final = "distances.weight"


class BiasedEncoder(Encoder[EncoderConfig]):
    """The base class of these encoders. Their layers use `EncoderSelfAttention` with `biased`."""

    def params(self) -> list[Param]:
        return [*super().params(), Param(DISTANCE_BIASES, (BUCKETS, self.config.heads), plain=True)]

    def learned_tables(self, weights: Mapping[str, Any], context: int) -> dict[str, np.ndarray]:
        return {BIASES: spread_biases(weights[DISTANCE_BIASES].numpy(), context)}
