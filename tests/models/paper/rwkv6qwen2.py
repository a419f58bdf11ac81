"""QRWKV6's forward pass: RWKV-6's time mix (Peng et al. 2024) on grouped keys, with the gated linear attention of
Yang et al. 2023 (section 4.1) whose keys count by what fades; Qwen2's other parts."""

from typing import Any

import numpy as np

from models.paper.plain import Array, doubled, rms_norm, silu
from models.paper.rwkv7 import before, sigmoid

ORDER = "rkvwg"  # of what makes mixes


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        time = {name.removeprefix(f"{at}self_attn."): each for name, each in w.items()}
        x = x + time_mix(time, rms_norm(x, w[f"{at}input_layernorm.weight"], eps), heads, heads // kv_heads)
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (h @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T


def time_mix(w: dict[str, Array], x: Array, heads: int, group: int) -> Array:
    tokens, delta = len(x), before(x) - x
    few = np.tanh((x + delta * w["time_maa_x"].reshape(-1)) @ w["time_maa_w1"]).reshape(tokens, len(ORDER), -1)
    mixed = {
        part: x + delta * (w[f"time_maa_{part}"].reshape(-1) + few[:, number] @ w["time_maa_w2"][number])
        for number, part in enumerate(ORDER)
    }
    names = {"r": "q_proj", "k": "k_proj", "v": "v_proj"}
    q, k, v = (mixed[part] @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0) for part, name in names.items())
    decay = w["time_decay"].reshape(-1) + np.tanh(mixed["w"] @ w["time_decay_w1"]) @ w["time_decay_w2"]
    q, decay = (each.reshape(tokens, heads, -1) for each in (q, np.exp(-np.exp(decay))))
    k, v = (np.repeat(each.reshape(tokens, heads // group, -1), group, axis=1) for each in (k, v))
    state, out = np.zeros((heads, k.shape[2], v.shape[2])), np.zeros_like(v)
    for t in range(tokens):
        state = decay[t][:, :, None] * state + np.einsum("hk,hv->hkv", (1 - decay[t]) * k[t], v[t])
        out[t] = np.einsum("hk,hkv->hv", q[t], state) / np.sqrt(q.shape[2])
    return (out.reshape(tokens, -1) * sigmoid(mixed["g"] @ w["gate.weight"].T)) @ w["o_proj.weight"].T
