"""One layer of a vision tower: bidirectional attention and a feed-forward block, pre-norm or post-norm."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.params import Columns, Param, Rows

Arrays = Mapping[str, Any]


class TowerAttention:
    """The projections of attention over the rows of a picture.

    norms      the norms of queries and of keys, applied before rotation
    rotary     name of the table of cosines and sines; each row has a position for each stream, "positions" int32
               [rows, streams]
    streams    the stream of each pair, see `ops.rope`
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        *,
        norms: tuple[RowBlock, RowBlock] | None = None,
        rotary: str = "",
        streams: tuple[int, ...] = (),
    ) -> None:
        width, dim, bias = config.width, config.head_dim, config.attention_bias
        queries, keys, group = config.heads * dim, config.kv_heads * dim, config.heads // config.kv_heads
        self.q = Linear(f"{name}.attn_q", queries, width, bias=bias, split=Rows(dim * group))
        self.k = Linear(f"{name}.attn_k", keys, width, bias=bias, split=Rows(dim))
        self.v = Linear(f"{name}.attn_v", keys, width, bias=bias, split=Rows(dim))
        self.o = Linear(f"{name}.attn_o", width, queries, bias=config.attention_out_bias, split=Columns(dim * group))
        self.norms, self.rotary, self.streams = norms, rotary, streams
        self.head_dim, self.scale = dim, config.attention_scale

    def params(self) -> list[Param]:
        parts: list[RowBlock] = [self.q, self.k, self.v, self.o, *(self.norms or ())]
        return [param for part in parts for param in part.params()]

    def project(self, x: Any, arrays: Arrays, weights: Arrays) -> dict[str, Any]:  # x [rows, width]
        """Return "q", "k" and "v" of some rows."""
        q, k, v = apply_linears(x, weights, self.q, self.k, self.v)
        if self.norms is not None:
            q, k = self.norms[0](q, weights), self.norms[1](k, weights)
        if self.rotary:
            table, how = weights[self.rotary], {"head_dim": self.head_dim, "style": "half", "streams": self.streams}
            q, k = (ops.rope(each, arrays["positions"], table, **how) for each in (q, k))
        return {"q": q, "k": k, "v": v}

    def mix(self, arrays: Arrays, spans: str, weights: Arrays) -> Any:
        """Return o(softmax(q k) v) of the rows of "q", each over its span of the picture's keys."""
        mixed = ops.cross_attention(
            arrays["q"], arrays["k"], arrays["v"], arrays[spans], head_dim=self.head_dim, scale=self.scale
        )
        return self.o(mixed, weights)


class TowerLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)), in two parts, `project` and `attend`: attention needs all keys.

    scales  prefix of the names of LayerScale's vectors, ".attn_scale.weight" and ".ffn_scale.weight" (Touvron et al.
            2021); "": the layer has no LayerScale
    spans   name of the array with each row's span of keys
    post    post-norm: x + norm(attention(x)) (EVA-CLIP in CogVLM)
    """

    def __init__(
        self,
        attention_norm: RowBlock,
        attention: TowerAttention,
        mlp_norm: RowBlock,
        mlp: RowBlock,
        *,
        scales: str = "",
        spans: str = "spans",
        post: bool = False,
    ) -> None:
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = attention_norm, attention, mlp_norm, mlp
        self.spans, self.post = spans, post
        width = attention.o.out
        self.scales = [Param(f"{scales}.{part}_scale.weight", (width,)) for part in ("attn", "ffn")] if scales else []

    def params(self) -> list[Param]:
        parts = (self.attention_norm, self.attention, self.mlp_norm, self.mlp)
        return [*(param for part in parts for param in part.params()), *self.scales]

    def project(self, x: Any, arrays: Arrays, weights: Arrays) -> dict[str, Any]:  # x [rows, width]
        """Return "q", "k" and "v" of some rows."""
        return self.attention.project(x if self.post else self.attention_norm(x, weights), arrays, weights)

    def attend(self, arrays: Arrays, weights: Arrays) -> Any:
        """Return the layer's output for the rows of "x" and "q": float32 [rows, width]."""
        x = arrays["x"]
        mixed = self.attention.mix(arrays, self.spans, weights)
        x = self._add(x, self.attention_norm(mixed, weights) if self.post else mixed, 0, weights)
        if self.post:
            return self._add(x, self.mlp_norm(self.mlp(x, weights), weights), 1, weights)
        return self._add(x, self.mlp(self.mlp_norm(x, weights), weights), 1, weights)

    def _add(self, x: Any, change: Any, block: int, weights: Arrays) -> Any:
        """Return x plus the output of a block."""
        if not self.scales:
            return ops.add(x, change)
        return ops.mix_rows(x, change, (weights[self.scales[block].name],))
