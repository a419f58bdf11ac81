"""Baichuan's forward pass: Yang et al. 2023, section 2.2; `W_pack` holds all queries, all keys, then all values."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu

SLOPES = {6: [2.0**-n for n in (2, 4, 6, 8, 1, 3)]}  # Press et al. 2022: four heads, and two more between


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps, count = doubled(tensors), config["rms_norm_eps"], config["num_attention_heads"]
    biased = "max_position_embeddings" not in config
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        packed = np.split(h @ w[f"{at}self_attn.W_pack.weight"].T, 3, axis=1)
        q, k, v = (heads(part, config["hidden_size"] // count) for part in packed)
        if biased:
            mixed = attention(q, k, v, np.array(SLOPES[count]))
        else:
            mixed = attention(rotated(q, 10000.0), rotated(k, 10000.0), v)
        x = x + mixed @ w[f"{at}self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (h @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    head = w["lm_head.weight"]
    if "z_loss_weight" in config:
        head = head / np.linalg.norm(head, axis=1, keepdims=True)
    return rms_norm(x, w["model.norm.weight"], eps) @ head.T
