"""Refact's forward pass, as its makers' code has it: Llama's block, layer norms, linear biases, one head of keys."""

from typing import Any

import numpy as np

from models.paper.gpt2_like import slopes
from models.paper.plain import Array, attention, doubled, heads, rms_norm, silu


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, dim = doubled(tensors), config["n_embd"] // config["n_head"]

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x - x.mean(-1, keepdims=True), w[f"{name}.weight"], config["layer_norm_epsilon"])

    x = w["transformer.wte.weight"][ids]
    for index in range(config["n_layer"]):
        at = f"transformer.h.{index}."
        h = normed(x, f"{at}ln_1")
        q = heads(h @ w[f"{at}attn.q.weight"].T, dim)
        k, v = np.split(heads(h @ w[f"{at}attn.kv.weight"].T, dim), 2, axis=1)
        x = x + attention(q, k, v, slopes(config["n_head"])) @ w[f"{at}attn.c_proj.weight"].T
        gate, up = np.split(normed(x, f"{at}ln_2") @ w[f"{at}mlp.gate_up_proj.weight"].T, 2, axis=1)
        x = x + (silu(gate) * up) @ w[f"{at}mlp.c_proj.weight"].T
    output = w.get("lm_head.weight", w["transformer.wte.weight"])
    return normed(x, "transformer.ln_f") @ output.T
