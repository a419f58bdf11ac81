"""SmallThinker's forward pass: Song et al. 2025, section 2; the router reads a layer's input."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, heads, rms_norm, rotated


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    dim, used = config["head_dim"], config["moe_num_active_primary_experts"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        scores = x @ w[f"{at}block_sparse_moe.primary_router.weight"].T
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[f"{at}self_attn.{part}_proj.weight"].T, dim) for part in "qkv")
        if config["rope_layout"][index]:
            q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        window = config["sliding_window_size"] if config["sliding_window_layout"][index] else None
        x = x + attention(q, k, v, window=window) @ w[f"{at}self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        for token, row in enumerate(h):
            chosen = np.argsort(-scores[token])[:used]
            own = scores[token, chosen]
            softmax = config["moe_primary_router_apply_softmax"]
            shares = np.exp(own - own.max()) if softmax else 1 / (1 + np.exp(-own))
            for expert, share in zip(chosen, shares / shares.sum(), strict=True):
                of = f"{at}block_sparse_moe.experts.{expert}."
                gate, up = (w[f"{of}{part}.weight"] @ row for part in ("gate", "up"))
                x[token] += share * (w[f"{of}down.weight"] @ (np.maximum(gate, 0) * up))
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T
