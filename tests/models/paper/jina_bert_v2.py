"""Jina BERT v2 forward: Guenther et al. 2023, section 3 (ALiBi on both sides, GEGLU), names as in its checkpoints."""

from math import erf
from typing import Any

import numpy as np

from models.paper.plain import doubled, heads


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int], types: list[int]) -> np.ndarray:
    """Return a vector for each token of the first text or of the second: float64 [tokens, width]."""
    w, eps, count = doubled(tensors), config["layer_norm_eps"], config["num_attention_heads"]
    dim = config["hidden_size"] // count

    def normed(x: np.ndarray, at: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w[f"{at}.weight"] + w[f"{at}.bias"]

    def product(x: np.ndarray, at: str) -> np.ndarray:
        return x @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = normed(x, "embeddings.LayerNorm")
    place = np.arange(len(ids))
    falls = slopes(count)[:, None, None] * np.abs(place - place[:, None])  # [heads, tokens, tokens]
    for index in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{index}."
        q, k, v = (heads(product(x, f"{at}attention.self.{part}"), dim) for part in ("query", "key", "value"))
        scores = np.einsum("thd,phd->htp", q, k) / np.sqrt(dim) - falls
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("htp,phd->thd", shares, v).reshape(len(ids), -1)
        x = normed(x + product(mixed, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        gated = x @ w[f"{at}mlp.gated_layers.weight"].T
        gate, up = np.split(gated, 2, axis=-1)
        gelu = gate * (1 + np.vectorize(erf)(gate / np.sqrt(2))) / 2
        x = normed(x + product(gelu * up, f"{at}mlp.wo"), f"{at}mlp.layernorm")
    return x


def slopes(heads_count: int) -> np.ndarray:
    """Press et al. 2022, section 3: a geometric series; between powers of two, every other one of the next."""
    whole = 2 ** int(np.log2(heads_count))
    series = 2.0 ** (-8.0 / whole * np.arange(1, whole + 1))
    more = 2.0 ** (-8.0 / (2 * whole) * np.arange(1, 2 * (heads_count - whole) + 1, 2))
    return np.concatenate([series, more])
