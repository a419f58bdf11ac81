"""PLaMo 3's forward pass, as its published code computes it: norms around both blocks, two rotary bases."""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def feed_forward(x: Array, at: str, w: dict[str, Array], eps: float) -> Array:
    """Return the sum that the second half of a layer of PLaMo 2 or 3 adds."""
    h = rms_norm(x, w[f"{at}pre_mlp_norm.weight"] + 1, eps)
    gate, up = np.split(h @ w[f"{at}mlp.gate_up_proj.weight"].T, 2, axis=-1)
    return rms_norm((silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T, w[f"{at}post_mlp_norm.weight"] + 5**-1.5, eps)


def mixed(
    h: Array, at: str, w: dict[str, Array], config: dict[str, Any], dim: int, theta: float, window: int | None
) -> Array:
    """Attention; a norm's weights are of all heads, or of each."""
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    q, k, v = np.split(h @ w[f"{at}mixer.qkv_proj.weight"].T, (queries, queries + keys), axis=-1)
    own, eps = f"{at}mixer.q_weight" in w, config["rms_norm_eps"]
    weights = [w[f"{at}mixer.{part}_weight"] if own else w[f"{at}mixer.{part}_norm.weight"] + 1 for part in "qk"]
    q, k = (rotated(rms_norm(heads(x, dim), weight, eps), theta) for x, weight in zip((q, k), weights, strict=True))
    return attention(q, k, heads(v, dim), window=window) @ w[f"{at}mixer.o_proj.weight"].T


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{index}."
        full = (index + 1) % config["sliding_window_pattern"] == 0
        theta, window = (config["rope_theta"], None) if full else (config["rope_local_theta"], config["window_size"])
        h = rms_norm(x, w[f"{at}pre_mixer_norm.weight"] + 1, eps)
        h = mixed(h, at, w, config, config["head_dim"], theta, window)
        x = x + rms_norm(h, w[f"{at}post_mixer_norm.weight"] + 1 / 5, eps)
        x = x + feed_forward(x, at, w, eps)
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"] + 1, eps) @ output.T
