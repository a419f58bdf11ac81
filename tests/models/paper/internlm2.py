"""InternLM2's forward pass: Cai et al. 2024, section 2.2; `wqkv` holds each key head with its queries and its value."""

from typing import Any

import numpy as np

from models.paper.plain import attention, doubled, rms_norm, rotated, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps, count, kv = doubled(tensors), config["rms_norm_eps"], len(ids), config["num_key_value_heads"]
    group, dim = config["num_attention_heads"] // kv, config["hidden_size"] // config["num_attention_heads"]
    x = w["model.tok_embeddings.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}attention_norm.weight"], eps)
        packed = (h @ w[f"{at}attention.wqkv.weight"].T + w.get(f"{at}attention.wqkv.bias", 0)).reshape(
            count, kv, group + 2, dim
        )
        q, k, v = packed[:, :, :group].reshape(count, -1, dim), packed[:, :, group], packed[:, :, group + 1]
        q, k = (rotated(each, config["rope_theta"]) for each in (q, k))
        x = x + attention(q, k, v) @ w[f"{at}attention.wo.weight"].T + w.get(f"{at}attention.wo.bias", 0)
        h = rms_norm(x, w[f"{at}ffn_norm.weight"], eps)
        gate, up = (h @ w[f"{at}feed_forward.{part}.weight"].T for part in ("w1", "w3"))
        x = x + (silu(gate) * up) @ w[f"{at}feed_forward.w2.weight"].T
    return rms_norm(x, w["model.norm.weight"], eps) @ w["output.weight"].T
