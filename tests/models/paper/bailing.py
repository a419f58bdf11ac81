"""Ling's forward pass: Inclusion AI's reports of 2025 on Ling and on Ling 2.0, names as in its checkpoints."""

from typing import Any

import numpy as np

from models.paper.deepseek import gated, mixture
from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps, second = doubled(tensors), config["rms_norm_eps"], "BailingMoeV2ForCausalLM" in config["architectures"]
    dim = config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    x = w["model.word_embeddings.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        packed = rms_norm(x, w[f"{at}input_layernorm.weight"], eps) @ w[f"{at}attention.query_key_value.weight"].T
        q, k, v = (heads(part, dim) for part in np.split(packed, [queries, queries + keys], axis=1))
        if second:
            q = partly(rms_norm(q, w[f"{at}attention.query_layernorm.weight"], eps), config)
            k = partly(rms_norm(k, w[f"{at}attention.key_layernorm.weight"], eps), config)
        else:
            q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}attention.dense.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        if index < config.get("first_k_dense_replace", 0):
            x = x + gated(h, w, f"{at}mlp.")
        else:
            x = x + (biased if second else mixture)(h, w, f"{at}mlp.", config)
    head = w.get("lm_head.weight", w["model.word_embeddings.weight"])
    if config.get("norm_head"):
        head = head / (np.linalg.norm(head, axis=0, keepdims=True) + 1e-7)
    return rms_norm(x, w["model.norm.weight"], eps) @ head.T


def partly(x: Array, config: dict[str, Any]) -> Array:
    """The first numbers of each head rotated."""
    count = int(x.shape[-1] * config["partial_rotary_factor"])
    return np.concatenate([rotated(x[..., :count], config["rope_theta"]), x[..., count:]], -1)


def biased(h: Array, w: dict[str, Array], at: str, config: dict[str, Any]) -> Array:
    """Experts of the best groups, chosen by sigmoids with a bias, weighted by sigmoids without."""
    affinities, groups = 1 / (1 + np.exp(-h @ w[f"{at}gate.weight"].T)), config["n_group"]
    result = gated(h, w, f"{at}shared_experts.")
    for row, affinity in enumerate(affinities):
        choice = (affinity + w[f"{at}gate.expert_bias"]).reshape(groups, -1)
        best = np.argsort(-np.sort(choice, axis=1)[:, -2:].sum(1))[: config["topk_group"]]
        choice[[group for group in range(groups) if group not in best]] = -np.inf
        chosen = np.argsort(-choice.reshape(-1))[: config["num_experts_per_tok"]]
        shares = affinity[chosen] / affinity[chosen].sum() * config["routed_scaling_factor"]
        for expert, share in zip(chosen, shares, strict=True):
            result[row] += share * gated(h[row], w, f"{at}experts.{expert}.")
    return result
