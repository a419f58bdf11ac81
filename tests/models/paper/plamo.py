"""PLaMo's forward pass, as its published code computes it: key heads are repeated one after the other, all at once."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.layers.{index}."
        h = rms_norm(x, w[f"{at}norm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        k, v = (np.tile(each, (1, config["n_shared_head"], 1)) for each in (k, v))
        gate, up = (h @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        mixed = attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        x = x + mixed + (silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
