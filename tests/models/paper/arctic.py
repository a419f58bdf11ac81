"""Snowflake Arctic's forward pass: what its makers' model card says of the dense-MoE hybrid, in Mixtral's words."""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim = config["hidden_size"] // config["num_attention_heads"]

    def run_mlp(x: Array, name: str) -> Array:
        gate, up, down = (w[f"{name}.{part}.weight"].T for part in ("w1", "w3", "w2"))
        return (silu(x @ gate) * (x @ up)) @ down

    def of_experts(x: Array, at: str) -> Array:
        logits = x @ w[f"{at}gate.weight"].T
        found = np.zeros_like(x)
        for row, scores in enumerate(logits):
            chosen = np.argsort(-scores)[: config["num_experts_per_tok"]]
            shares = np.exp(scores[chosen] - scores.max())
            for share, expert in zip(shares / shares.sum(), chosen, strict=True):
                found[row] += share * run_mlp(x[row], f"{at}experts.{expert}")
        return found

    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        mixed = of_experts(rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps), f"{at}block_sparse_moe.")
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        x = x + run_mlp(rms_norm(x, w[f"{at}residual_layernorm.weight"], eps), f"{at}residual_mlp") + mixed
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
