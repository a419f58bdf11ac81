"""PLaMo 2's forward pass, as its published code computes it: state spaces between layers of attention."""

from typing import Any

import numpy as np

from models.paper.plain import Array, doubled, rms_norm, silu
from models.paper.plamo3 import feed_forward, mixed


def scanned(h: Array, at: str, w: dict[str, Array], config: dict[str, Any]) -> Array:
    count, dim, size = (config[key] for key in ("mamba_num_heads", "hidden_size_per_head", "mamba_d_state"))
    eps = config["rms_norm_eps"]
    zx = (h @ w[f"{at}mixer.in_proj.weight"].T).reshape(len(h), count, 2, dim)
    z, x = zx[:, :, 0], zx[:, :, 1].reshape(len(h), -1)
    taps = w[f"{at}mixer.conv1d.weight"][:, 0].T
    before = np.concatenate([np.zeros((len(taps) - 1, x.shape[1])), x])
    x = silu(sum(tap * before[place : place + len(x)] for place, tap in enumerate(taps)))
    made = np.split(x @ w[f"{at}mixer.bcdt_proj.weight"].T, (size, 2 * size), axis=-1)
    write, read, rank = (
        rms_norm(each, w[f"{at}mixer.{part}_norm_weight"], eps)
        for each, part in zip(made, ("B", "C", "dt"), strict=True)
    )
    step = np.log1p(np.exp(rank @ w[f"{at}mixer.dt_proj.weight"].T + w[f"{at}mixer.dt_bias"]))
    decay, x = -np.exp(w[f"{at}mixer.A_log"]), x.reshape(len(h), count, dim)
    state, out = np.zeros((count, dim, size)), np.empty_like(x)
    for row in range(len(h)):
        state = state * np.exp(step[row] * decay)[:, None, None]
        state = state + (step[row][:, None] * x[row])[:, :, None] * write[row]
        out[row] = state @ read[row] + w[f"{at}mixer.D"][:, None] * x[row]
    return (out * silu(z)).reshape(len(h), -1) @ w[f"{at}mixer.out_proj.weight"].T


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, eps, every = doubled(tensors), config["rms_norm_eps"], config["mamba_step"]
    x, layers = w["model.embed_tokens.weight"][ids], config["num_hidden_layers"]
    for index in range(layers):
        at = f"model.layers.layers.{index}."
        attends = index == layers - 1 if layers <= every // 2 else index % every == every // 2
        window = None if index in config.get("full_attention_idx", ()) else config["attention_window_size"] + 1
        h = rms_norm(x, w[f"{at}pre_mixer_norm.weight"] + 1, eps)
        dim = config["hidden_size_per_head"]
        h = mixed(h, at, w, config, dim, 10000.0, window) if attends else scanned(h, at, w, config)
        x = x + rms_norm(h, w[f"{at}post_mixer_norm.weight"] + 1 / 5, eps)
        x = x + feed_forward(x, at, w, eps)
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"] + 1, eps) @ output.T
