"""Dense layers that a pooled vector passes (the Dense modules of sentence-transformers)."""

from collections.abc import Sequence
from typing import NamedTuple

from sporelm.models.params import Param

PARTS = ("weight", "bias")


class Dense(NamedTuple):
    """activation(weight x + bias); `unit`: x is first divided by its length.

    name        of its weights, "dense_2"; `folder` holds them
    activation  "" for none, "tanh", "relu"
    """

    name: str
    width: int
    out: int
    bias: bool = False
    activation: str = ""
    unit: bool = False
    folder: str = ""

    @property
    def weights(self) -> list[str]:
        return [f"{self.name}.{part}" for part in PARTS[: 1 + self.bias]]


def dense_params(layers: Sequence[Dense]) -> list[Param]:
    """Return the parameters of dense layers. No back-end computes with them, since only one vector per text passes
    them."""
    shapes = [(name, layer) for layer in layers for name in layer.weights]
    return [
        Param(name, (layer.out,) if name.endswith(".bias") else (layer.out, layer.width), plain=True)
        for name, layer in shapes
    ]
