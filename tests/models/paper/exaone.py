"""EXAONE 3's forward pass: Research et al. 2024, section 2.1; Llama's layer under GPT-2's names."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["layer_norm_epsilon"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["transformer.wte.weight"][ids]
    for index in range(config["num_layers"]):
        at = f"transformer.h.{index}."
        h = rms_norm(x, w[f"{at}ln_1.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}attn.attention.{part}_proj.weight"].T, dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}attn.attention.out_proj.weight"].T
        h = rms_norm(x, w[f"{at}ln_2.weight"], eps)
        x = (
            x
            + (silu(h @ w[f"{at}mlp.c_fc_0.weight"].T) * (h @ w[f"{at}mlp.c_fc_1.weight"].T))
            @ w[f"{at}mlp.c_proj.weight"].T
        )
    output = w.get("lm_head.weight", w["transformer.wte.weight"])
    return rms_norm(x, w["transformer.ln_f.weight"], eps) @ output.T
