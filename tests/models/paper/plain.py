"""Plain forward passes in numpy, float64, one sequence, no cache: what papers say of models that transformers lacks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rotated(x: Array, theta: float) -> Array:
    """x [tokens, heads, dim], value i of a head paired with i + dim / 2."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def attention(q: Array, k: Array, v: Array, slopes: Array | None = None, window: int | None = None) -> Array:
    """q [tokens, heads, dim], k and v [tokens, kv_heads, dim] -> [tokens, heads * dim]; causal.

    slopes [heads], if given, lower scores with each position back; `window` is how many positions are seen.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    if slopes is not None:
        places = np.arange(len(q))
        scores = scores - slopes[:, None, None] * (places[:, None] - places)
    seen = np.tri(len(q), dtype=bool)
    seen &= ~np.tri(len(q), k=-(window or len(q)), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)


def heads(x: Array, dim: int) -> Array:
    return x.reshape(len(x), -1, dim)


def doubled(tensors: dict[str, Any]) -> dict[str, Array]:
    return {name: values.astype(np.float64) for name, values in tensors.items()}
