"""The forward pass of Llama (Touvron et al. 2023) whose layers differ.

Puzzle (Bercovich et al. 2024): a layer may have fewer key heads, one matrix in place of attention, or lack a part.
"""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        if f"{at}self_attn.linear_attn.weight" in w:
            x = x + rms_norm(x, w[f"{at}input_layernorm.weight"], eps) @ w[f"{at}self_attn.linear_attn.weight"].T
        elif f"{at}input_layernorm.weight" in w:
            h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
            q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
            q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
            x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        if f"{at}post_attention_layernorm.weight" in w:
            h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
            gate, up, down = (w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
            x = x + (silu(h @ gate) * (h @ up)) @ down
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
