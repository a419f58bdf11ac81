"""The embedding table."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.params import Param


class Embedding:
    """The row of each token. With `fills`, a token beyond the table has the first row."""

    def __init__(self, name: str, vocab: int, width: int, *, fills: bool = False) -> None:
        self.name, self.vocab, self.width, self.fills = name, vocab, width, fills

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.weight", (self.vocab, self.width))]

    def __call__(self, tokens: Any, weights: Mapping[str, Any]) -> Any:  # tokens int32 [tokens] -> [tokens, width]
        how = {"fills": True} if self.fills else {}
        return ops.embedding(tokens, weights[f"{self.name}.weight"], **how)
