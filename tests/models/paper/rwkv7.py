"""RWKV-7's forward pass: Peng et al. 2025 ("RWKV-7 Goose"), section 4 and appendix; weights as fla-hub names them."""

from typing import Any

import numpy as np

from models.paper.plain import Array, doubled


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    less = x - x.mean(-1, keepdims=True)
    return less / np.sqrt((less * less).mean(-1, keepdims=True) + eps) * weight + bias


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def before(x: Array) -> Array:
    """Each row's predecessor, zeros before the first."""
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]])


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps, dim = doubled(tensors), config["norm_eps"], config["head_dim"]

    def normed(x: Array, name: str) -> Array:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)

    x = normed(w["model.embeddings.weight"][ids], "model.layers.0.pre_norm")
    first = np.zeros_like(x)
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = normed(x, f"{at}attn_norm")
        made, first = time_mix(
            {name.removeprefix(f"{at}attn."): each for name, each in w.items()}, h, first, index, dim, eps
        )
        x = x + made
        h = normed(x, f"{at}ffn_norm")
        k = h + w[f"{at}ffn.x_k"] * (before(h) - h)
        x = x + np.maximum(k @ w[f"{at}ffn.key.weight"].T, 0) ** 2 @ w[f"{at}ffn.value.weight"].T
    return normed(x, "model.norm") @ w.get("lm_head.weight", w["model.embeddings.weight"]).T


def time_mix(w: dict[str, Array], x: Array, first: Array, index: int, dim: int, eps: float) -> tuple[Array, Array]:
    """Equations 3 to 22 of one layer; `first` are the first layer's values."""
    tokens, width = x.shape
    mixed = {part: x + w[f"x_{part}"].reshape(-1) * (before(x) - x) for part in "rwkvag"}

    def lora(part: str, change: Any = None) -> Array:
        few = mixed[part] @ w[f"{part}_lora.lora.0.weight"].T
        made: Array = (change(few) if change else few) @ w[f"{part}_lora.lora.2.weight"].T
        return made + w.get(f"{part}_lora.lora.2.bias", 0)

    r, k, v = (mixed[part] @ w[f"{part}_proj.weight"].T for part in "rkv")
    if index == 0:
        first = v
    else:
        v = v + (first - v) * sigmoid(lora("v"))
    decay = np.exp(-np.exp(-0.5) * sigmoid(lora("w", np.tanh)))
    rate, gate = sigmoid(lora("a")), lora("g", sigmoid)
    removed = (k * w["k_k"]).reshape(tokens, -1, dim)
    removed = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
    k = k * (1 + (rate - 1) * w["k_a"])
    r, k, v, decay, rate = (each.reshape(tokens, -1, dim) for each in (r, k, v, decay, rate))
    state, out = np.zeros((width // dim, dim, dim)), np.zeros_like(v)  # [heads, values, keys]
    for t in range(tokens):
        change = np.einsum("hi,hj->hij", removed[t], rate[t] * removed[t])
        kept = np.einsum("hi,ij->hij", decay[t], np.eye(dim)) - change
        state = state @ kept + np.einsum("hv,hk->hvk", v[t], k[t])
        out[t] = np.einsum("hvk,hk->hv", state, r[t])
    ones = np.ones(dim)
    out = layer_norm(out, ones, 0 * ones, dim * eps).reshape(tokens, width) * w["g_norm.weight"] + w["g_norm.bias"]
    out = out + ((r * k * w["r_k"]).sum(-1, keepdims=True) * v).reshape(tokens, width)
    return (out * gate) @ w["o_proj.weight"].T, first
