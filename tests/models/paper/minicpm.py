"""MiniCPM's forward pass: Hu et al. 2024, section 4 (tensor programs' scales), names as its checkpoints have them."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    added = config["scale_depth"] / np.sqrt(config["num_hidden_layers"])
    x = w["model.embed_tokens.weight"][ids] * config["scale_emb"]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T * added
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (h @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T * added
    x = rms_norm(x, w["model.norm.weight"], eps) / (config["hidden_size"] / config["dim_model_base"])
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
