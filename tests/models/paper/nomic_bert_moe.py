"""Nomic Embed v2's forward: Nussbaum, Duderstadt 2025, section 3: BERT with rotary positions, and in every other layer
experts. The two experts with the highest shares count by their shares, which are not summed to one. Names as in its
folder."""

from math import erf
from typing import Any

import numpy as np

from models.paper.plain import doubled, heads


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int], types: list[int]) -> np.ndarray:
    """Return a vector for each token: float64 [tokens, width]."""
    w, eps, count = doubled(tensors), config["layer_norm_epsilon"], config["n_head"]
    dim, inner, experts = config["n_embd"] // count, config["n_inner"], config["num_experts"]

    def normed(x: np.ndarray, at: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w[f"{at}.weight"] + w[f"{at}.bias"]

    def product(x: np.ndarray, at: str) -> np.ndarray:
        return x @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    def turned(x: np.ndarray) -> np.ndarray:  # [tokens, heads, dim]
        rates = config["rotary_emb_base"] ** (-np.arange(0, dim, 2) / dim)
        angles = (np.arange(len(ids))[:, None] * rates)[:, None]
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def gelu(x: np.ndarray) -> np.ndarray:
        return np.array(x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2)

    def softmax(x: np.ndarray) -> np.ndarray:
        shares = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.array(shares / shares.sum(axis=-1, keepdims=True))

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = normed(x, "emb_ln")
    for index in range(config["n_layer"]):
        at = f"encoder.layers.{index}."
        q, k, v = (heads(part, dim) for part in np.split(product(x, f"{at}attn.Wqkv"), 3, axis=-1))
        shares = softmax(np.einsum("thd,phd->htp", turned(q), turned(k)) / np.sqrt(dim))
        mixed = np.einsum("htp,phd->thd", shares, v).reshape(len(ids), -1)
        x = normed(x + product(mixed, f"{at}attn.out_proj"), f"{at}norm1")
        if index % 2 == 0:
            made = product(gelu(product(x, f"{at}mlp.fc1")), f"{at}mlp.fc2")
        else:
            parts = softmax(x @ w[f"{at}mlp.router.layer.weight"].T)
            first, second = (w[f"{at}mlp.experts.mlp.w{n}"].reshape(experts, inner, -1) for n in (1, 2))
            made = np.zeros_like(x) + w.get(f"{at}mlp.experts.bias", 0)
            for row, part in enumerate(parts):
                for expert in np.argsort(-part)[: config["moe_top_k"]]:
                    made[row] += part[expert] * (gelu(first[expert] @ x[row]) @ second[expert])
        x = normed(x + made, f"{at}norm2")
    return x
