"""The forward pass of CogVLM's tower: Wang et al. 2023, section 2.1, and visual.py in the authors' folders."""

from math import erf
from typing import Any

import numpy as np

from models.paper.plain import Array, doubled, silu

gelu = np.vectorize(lambda x: x * (1 + erf(x / np.sqrt(2))) / 2)


def tower_rows(config: dict[str, Any], tensors: dict[str, Any], pixels: np.ndarray) -> Array:
    """pixels [3, height, width] -> [rows, width of the text model], with the rows at both ends."""
    w, vision = doubled(tensors), config["vision_config"]
    patch, heads, eps = vision["patch_size"], vision["num_heads"], vision["layer_norm_eps"]

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"model.vision.{name}.weight"].T + w.get(f"model.vision.{name}.bias", 0)

    def normed(x: Array, name: str, eps: float) -> Array:
        x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return scaled * w[f"model.vision.{name}.weight"] + w[f"model.vision.{name}.bias"]

    grid = pixels.shape[1] // patch
    cut = pixels.astype(np.float64).reshape(3, grid, patch, grid, patch).transpose(1, 3, 0, 2, 4)
    kernel, bias = (w[f"model.vision.patch_embedding.proj.{part}"] for part in ("weight", "bias"))
    x = np.einsum("yxcij,ocij->yxo", cut, kernel).reshape(grid**2, -1) + bias
    x = np.concatenate([w["model.vision.patch_embedding.cls_embedding"], x])
    x = x + w["model.vision.patch_embedding.position_embedding.weight"]
    for index in range(vision["num_hidden_layers"]):
        at = f"transformer.layers.{index}."
        packed = linear(x, f"{at}attention.query_key_value").reshape(len(x), 3, heads, -1)
        q, k, v = packed[:, 0], packed[:, 1], packed[:, 2]
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1)
        x = x + normed(linear(mixed, f"{at}attention.dense"), f"{at}input_layernorm", eps)
        inner = linear(gelu(linear(x, f"{at}mlp.fc1")), f"{at}mlp.fc2")
        x = x + normed(inner, f"{at}post_attention_layernorm", eps)
    x = x[1:]
    if "num_multi_query_heads" in config:  # CogVLM2
        squares = x.reshape(grid // 2, 2, grid // 2, 2, -1)
        kernel, bias = (w[f"model.vision.conv.{part}"] for part in ("weight", "bias"))
        x = np.einsum("yixjc,ocij->yxo", squares, kernel).reshape(-1, kernel.shape[0]) + bias
    x = gelu(normed(linear(x, "linear_proj.linear_proj"), "linear_proj.norm1", 1e-5))
    x = silu(linear(x, "linear_proj.gate_proj")) * linear(x, "linear_proj.dense_h_to_4h")
    x = linear(x, "linear_proj.dense_4h_to_h")
    return np.concatenate([w["model.vision.boi"][0], x, w["model.vision.eoi"][0]])
