"""Maincoder's forward pass: Llama (Touvron et al. 2023), its pairs adjacent, queries and keys normed once rotated."""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def paired(x: Array, theta: float) -> Array:
    """x [tokens, heads, dim], value 2 i of a head paired with 2 i + 1."""
    halves = rotated(np.concatenate([x[..., ::2], x[..., 1::2]], -1), theta)
    left, right = np.split(halves, 2, axis=-1)
    return np.stack([left, right], -1).reshape(x.shape)


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, config["head_dim"]) for part in "qkv")
        q, k = (paired(each, config["rope_theta"]) for each in (q, k))
        q, k = (rms_norm(each, w[f"{at}self_attn.{part}_norm.weight"], eps) for each, part in ((q, "q"), (k, "k")))
        x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        gate, up, down = (w[f"{at}feed_forward.{part}_proj.weight"].T for part in ("gate", "up", "down"))
        x = x + (silu(h @ gate) * (h @ up)) @ down
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
