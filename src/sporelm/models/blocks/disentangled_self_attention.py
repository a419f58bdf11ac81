"""Disentangled attention of whole texts: scores from content and from relative positions (DeBERTa)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.encoder_self_attention import EncoderSelfAttention
from sporelm.models.blocks.linear import apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.quant import F32
from sporelm.quant.stored_tensor import StoredTensor


class DisentangledSelfAttention(EncoderSelfAttention):
    """o(softmax(q k + q kd + qd k) v) over the rows of a text. kd and qd are the key and the query that the layer's own
    projections compute from the learned row of a distance.

    buckets, farthest   of distances, see `ops.disentangled_attention`
    """

    def __init__(self, name: str, config: ModelConfig, buckets: int, farthest: int) -> None:
        super().__init__(name, config)
        self.options = {"head_dim": self.head_dim, "scale": self.scale, "buckets": buckets, "max_distance": farthest}
        self.parts = [(self.k, f"{name}.attn_k_apart"), (self.q, f"{name}.attn_q_apart")]

    def learned(self, rows: Any, weights: Mapping[str, Any]) -> dict[str, StoredTensor]:
        """Return the keys and queries of distances, computed from their learned rows [distances, width]: float32
        [heads, distances, head_dim] each."""
        found = {}
        for linear, name in self.parts:
            made = linear(rows, weights).numpy()
            heads = np.ascontiguousarray(made.reshape(len(made), -1, self.head_dim).swapaxes(0, 1), np.float32)
            found[name] = StoredTensor(name, F32, heads.shape, heads.reshape(-1).view(np.uint8))
        return found

    def __call__(self, x: Any, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        q, k, v = apply_linears(x, weights, self.q, self.k, self.v)
        apart = [ops.linear_heads(each, weights[name]) for each, (_, name) in zip((q, k), self.parts, strict=True)]
        return self.o(ops.disentangled_attention(q, k, v, texts.starts, *apart, **self.options), weights)
