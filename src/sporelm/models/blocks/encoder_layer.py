"""One layer of an encoder: attention of whole texts and a feed-forward block, with norms before or after each sum."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.encoder_self_attention import EncoderSelfAttention
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.models.params import Param


class EncoderLayer:
    """x + attention(x), then x + mlp(x), with two norms; the first one may be absent.

    post     norms follow the sums, as in Vaswani et al. 2017; otherwise they precede the blocks
    behind   norms of the outputs of the blocks, if `post` is false
    """

    def __init__(
        self,
        first_norm: RowBlock | None,
        attention: EncoderSelfAttention,
        second_norm: RowBlock,
        mlp: RowBlock,
        *,
        post: bool,
        behind: tuple[RowBlock, RowBlock] | None = None,
    ) -> None:
        self.first_norm, self.attention, self.second_norm, self.mlp = first_norm, attention, second_norm, mlp
        self.post, self.behind = post, behind

    def params(self) -> list[Param]:
        parts = (self.first_norm, self.attention, self.second_norm, self.mlp, *(self.behind or ()))
        return [param for part in parts if part is not None for param in part.params()]

    def __call__(self, x: Any, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        if self.post:
            assert self.first_norm is not None
            x = self.first_norm(ops.add(x, self.attention(x, texts, weights)), weights)
            return self.second_norm(ops.add(x, self.mlp(x, weights)), weights)
        read = x if self.first_norm is None else self.first_norm(x, weights)
        x = ops.add(x, self._behind(0, self.attention(read, texts, weights), weights))
        return ops.add(x, self._behind(1, self.mlp(self.second_norm(x, weights), weights), weights))

    def _behind(self, part: int, x: Any, weights: Mapping[str, Any]) -> Any:
        return x if self.behind is None else self.behind[part](x, weights)
