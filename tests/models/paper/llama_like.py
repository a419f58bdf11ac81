"""The forward pass of families that are Llama (Touvron et al. 2023) with layer norms (Orion) or biases (InternLM 1)."""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]

    def normed(x: Array, name: str) -> Array:
        if f"{name}.bias" not in w:
            return rms_norm(x, w[f"{name}.weight"], eps)
        x = x - x.mean(-1, keepdims=True)
        return rms_norm(x, w[f"{name}.weight"], eps) + w[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = normed(x, f"{at}input_layernorm")
        q, k, v = (heads(linear(h, f"{at}self_attn.{part}_proj"), dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + linear(attention(q, k, v), f"{at}self_attn.o_proj")
        h = normed(x, f"{at}post_attention_layernorm")
        x = x + linear(silu(linear(h, f"{at}mlp.gate_proj")) * linear(h, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return normed(x, "model.norm") @ output.T
