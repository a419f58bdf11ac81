"""Qwen 1's forward pass within the length that it was trained for: Bai et al. 2023, section 2.3."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["layer_norm_epsilon"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["transformer.wte.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"transformer.h.{index}."
        h = rms_norm(x, w[f"{at}ln_1.weight"], eps)
        packed = h @ w[f"{at}attn.c_attn.weight"].T + w[f"{at}attn.c_attn.bias"]
        q, k, v = (heads(each, dim) for each in np.split(packed, 3, axis=1))
        q, k = (rotated(each, config["rotary_emb_base"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}attn.c_proj.weight"].T
        h = rms_norm(x, w[f"{at}ln_2.weight"], eps)
        up, gate = (h @ w[f"{at}mlp.{part}.weight"].T for part in ("w1", "w2"))
        x = x + (up * silu(gate)) @ w[f"{at}mlp.c_proj.weight"].T
    output = w.get("lm_head.weight", w["transformer.wte.weight"])
    return rms_norm(x, w["transformer.ln_f.weight"], eps) @ output.T
