"""OpenELM's forward pass: Mehta et al. 2024, sections 2.1 and 2.2; heads and widths are told by the tensors' shapes."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated, silu

EPS = 1e-6


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, dim = doubled(tensors), config["head_dim"]
    x = w["transformer.token_embeddings.weight"][ids]
    for index in range(config["num_transformer_layers"]):
        at = f"transformer.layers.{index}."
        qkv = heads(rms_norm(x, w[f"{at}attn_norm.weight"], EPS) @ w[f"{at}attn.qkv_proj.weight"].T, dim)
        count, keys = config["num_query_heads"][index], config["num_kv_heads"][index]
        q, k, v = np.split(qkv, [count, count + keys], axis=1)
        q, k = (rms_norm(each, w[f"{at}attn.{part}_norm.weight"], EPS) for each, part in ((q, "q"), (k, "k")))
        q, k = (rotated(each, config["rope_freq_constant"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}attn.out_proj.weight"].T
        both = rms_norm(x, w[f"{at}ffn_norm.weight"], EPS) @ w[f"{at}ffn.proj_1.weight"].T
        gate, up = np.split(both, 2, axis=1)
        x = x + (silu(gate) * up) @ w[f"{at}ffn.proj_2.weight"].T
    return rms_norm(x, w["transformer.norm.weight"], EPS) @ w["transformer.token_embeddings.weight"].T
