"""The classification head, which scores whole texts."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.linear import Linear
from sporelm.models.params import Param


class Classifier:
    """output(norm(activation(dense(x)))); `dense` and `norm` are optional.

    activation  "tanh", or a kind of `ops.activate`
    """

    def __init__(
        self, labels: int, width: int, *, dense: bool, bias: bool, activation: str, norm: RowBlock | None = None
    ) -> None:
        self.dense = Linear("classifier_dense", width, width, bias=bias) if dense else None
        self.norm, self.activation = norm, activation
        self.output = Linear("classifier", labels, width, bias=True)

    def params(self) -> list[Param]:
        parts = (self.dense, self.norm, self.output)
        return [param for part in parts if part is not None for param in part.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [texts, width] -> [texts, labels]
        if self.dense is not None:
            x = self.dense(x, weights)
            # A cap of 1 is the plain tanh.
            x = ops.softcap(x, cap=1.0) if self.activation == "tanh" else ops.activate(x, kind=self.activation)
        if self.norm is not None:
            x = self.norm(x, weights)
        return self.output(x, weights)
