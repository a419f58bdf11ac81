"""RWKV-6's forward pass: Peng et al. 2024 ("Eagle and Finch"), section 4; weights as the folders of RWKV name them."""

from typing import Any

import numpy as np

from models.paper.plain import Array, doubled, silu
from models.paper.rwkv7 import before, layer_norm, sigmoid

MIXES = "wkvrg"


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps = doubled(tensors), config["layer_norm_epsilon"]

    def normed(x: Array, name: str) -> Array:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)

    x = normed(w["rwkv.embeddings.weight"][ids], "rwkv.blocks.0.pre_ln")
    for index in range(config["num_hidden_layers"]):
        at = f"rwkv.blocks.{index}."
        time = {name.removeprefix(f"{at}attention."): each for name, each in w.items()}
        x = x + time_mix(time, normed(x, f"{at}ln1"), 1e-5 * config["head_size_divisor"] ** 2)
        h, ffn = normed(x, f"{at}ln2"), f"{at}feed_forward."
        k, r = (h + w[f"{ffn}time_maa_{part}"].reshape(-1) * (before(h) - h) for part in "kr")
        made = np.maximum(k @ w[f"{ffn}key.weight"].T, 0) ** 2 @ w[f"{ffn}value.weight"].T
        x = x + sigmoid(r @ w[f"{ffn}receptance.weight"].T) * made
    return normed(x, "rwkv.ln_out") @ w.get("head.weight", w["rwkv.embeddings.weight"]).T


def time_mix(w: dict[str, Array], x: Array, eps: float) -> Array:
    """Equations 11 to 20 of one layer."""
    tokens, delta, (heads, dim) = len(x), before(x) - x, w["time_faaaa"].shape
    few = np.tanh((x + delta * w["time_maa_x"].reshape(-1)) @ w["time_maa_w1"]).reshape(tokens, len(MIXES), -1)
    mixed = {
        part: x + delta * (w[f"time_maa_{part}"].reshape(-1) + few[:, number] @ w["time_maa_w2"][number])
        for number, part in enumerate(MIXES)
    }
    r, k, v, g = (mixed[name[0]] @ w[f"{name}.weight"].T for name in ("receptance", "key", "value", "gate"))
    decay = w["time_decay"].reshape(-1) + np.tanh(mixed["w"] @ w["time_decay_w1"]) @ w["time_decay_w2"]
    decay = np.exp(-np.exp(decay))
    r, k, v, decay = (each.reshape(tokens, heads, dim) for each in (r, k, v, decay))
    state, out = np.zeros((heads, dim, dim)), np.zeros_like(v)  # [heads, keys, values]
    for t in range(tokens):
        added = np.einsum("hk,hv->hkv", k[t], v[t])
        out[t] = np.einsum("hk,hkv->hv", r[t], state + w["time_faaaa"][:, :, None] * added)
        state = decay[t][:, :, None] * state + added
    ones = np.ones(dim)
    out = layer_norm(out, ones, 0 * ones, eps).reshape(tokens, -1) * w["ln_x.weight"] + w["ln_x.bias"]
    return (out * silu(g)) @ w["output.weight"].T
