"""The packed weights of a gated MLP, or of experts that are gated MLPs."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class GatedWeights(NamedTuple):
    """Packed matrices of (activate(x @ gate.T) * (x @ up.T)) @ down.T.

    format       of gate and up
    down_format  of down
    shape        of gate and of up: (inner, width), or (experts, inner, width)
    """

    gate: Tensor
    up: Tensor
    down: Tensor
    format: str
    down_format: str
    shape: Sequence[int]

    @property
    def down_shape(self) -> tuple[int, ...]:
        return (*self.shape[:-2], self.shape[-1], self.shape[-2])

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key of programs with these weights: other addresses need others."""
        addresses = (each.data_ptr() for each in (self.gate, self.up, self.down))
        return (*addresses, self.format, self.down_format, *self.shape)
