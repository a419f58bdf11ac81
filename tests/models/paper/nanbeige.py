"""Nanbeige 4.2's forward pass: its model card; Llama's layers, several times, the last norm between them too."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for loop in range(config["num_loops"]):
        if loop and not config["skip_loop_final_norm"]:
            x = rms_norm(x, w["model.norm.weight"], eps)
        for index in range(config["num_hidden_layers"]):
            at = f"model.layers.{index}."
            h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
            q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
            q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
            x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
            h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
            gate, up = (h @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
