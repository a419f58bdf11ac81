"""The forward pass of families that are GPT-2 (Radford et al. 2019) with other positions and blocks.

CodeShell (Xie et al. 2024): rotary positions, groups of query heads. Jais (Sengupta et al. 2023): linear biases (Press
et al. 2022), SwiGLU, and muP's scales of the embedding, of scores and of logits.
"""

import math
from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, heads, rms_norm, rotated, silu


def gelu(x: Array) -> Array:
    """By a tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slopes(count: int) -> Array:
    """Of linear biases: a geometric series for the power of two below, every other one of the next for the rest."""
    whole = 2 ** int(math.log2(count))
    first = [2 ** (-8 * (n + 1) / whole) for n in range(whole)]
    return np.array(first + [2 ** (-4 * (2 * n + 1) / whole) for n in range(count - whole)])


def forward(config: dict[str, Any], tensors: dict[str, Any], ids: list[int]) -> np.ndarray:
    w, count, width = doubled(tensors), config["n_head"], config["n_embd"]
    dim, jais = width // count, config["model_type"] == "jais"

    def normed(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        return rms_norm(x, w[f"{name}.weight"], config["layer_norm_epsilon"]) + w[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:  # Jais has its matrices as [in, out]
        weight = w[f"{name}.weight"]
        return x @ (weight if jais else weight.T) + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][ids]
    x = x * config.get("embeddings_scale", config.get("mup_embeddings_scale", 1.0))
    by_width = config.get("scale_qk_dot_by_d", config.get("mup_scale_qk_dot_by_d", False))
    for index in range(config["n_layer"]):
        at = f"transformer.h.{index}."
        qkv = linear(normed(x, f"{at}ln_1"), f"{at}attn.c_attn")
        rest = (qkv.shape[1] - width) // 2
        q, k, v = (heads(each, dim) for each in np.split(qkv, [width, width + rest], axis=1))
        if jais:
            mixed = attention(q * (dim**-0.5 if by_width else 1.0), k, v, slopes(count))
        else:
            mixed = attention(rotated(q, 10000.0), rotated(k, 10000.0), v)
        x = x + linear(mixed, f"{at}attn.c_proj")
        h = normed(x, f"{at}ln_2")
        up = linear(h, f"{at}mlp.c_fc")
        x = x + linear(up * silu(linear(h, f"{at}mlp.c_fc2")) if jais else gelu(up), f"{at}mlp.c_proj")
    output = w.get("lm_head.weight", w["transformer.wte.weight"])
    scale = config.get("width_scale", config.get("mup_output_alpha", 1.0) * config.get("mup_width_scale", 1.0))
    return normed(x, "transformer.ln_f") @ output.T * scale
