"""DeepSeek MoE's forward pass: Dai et al. 2024, section 3, names as its checkpoints have them."""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        dense = index < config["first_k_dense_replace"]
        x = x + (gated(h, w, f"{at}mlp.") if dense else mixture(h, w, f"{at}mlp.", config))
    return rms_norm(x, w["model.norm.weight"], eps) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def gated(h: Array, w: dict[str, Array], at: str) -> Array:
    gate, up = (h @ w[f"{at}{part}_proj.weight"].T for part in ("gate", "up"))
    return (silu(gate) * up) @ w[f"{at}down_proj.weight"].T


def mixture(h: Array, w: dict[str, Array], at: str, config: dict[str, Any]) -> Array:
    """The shared experts, and those with the greatest affinities, row by row."""
    powers = np.exp(h @ w[f"{at}gate.weight"].T)
    affinities = powers / powers.sum(-1, keepdims=True)
    result = gated(h, w, f"{at}shared_experts.")
    for row, affinity in enumerate(affinities):
        chosen = np.argsort(-affinity)[: config["num_experts_per_tok"]]
        whole = affinity[chosen].sum() if config["norm_topk_prob"] else 1.0
        for expert in chosen:
            result[row] += affinity[expert] / whole * gated(h[row], w, f"{at}experts.{expert}.")
    return result
