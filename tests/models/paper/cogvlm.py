"""CogVLM's forward pass: Wang et al. 2023, section 2, and modeling_cogvlm.py in the authors' folders (CogVLM, CogVLM2).

`places` are those of rows of a picture: they pass the matrices of the visual expert, but for the last one, and their
rotary positions are `build_position_ids`'s. `values` are the inputs at these places.
"""

from typing import Any

import numpy as np

from models.paper.plain import Array, attention, doubled, rms_norm, silu


def forward(
    config: dict[str, Any],
    tensors: dict[str, Any],
    ids: list[int],
    places: slice = slice(0, 0),
    values: Any = None,
) -> np.ndarray:
    w, eps, count = doubled(tensors), config["rms_norm_eps"], len(ids)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_multi_query_heads", heads)
    theta = config.get("rope_theta", 5e5 if "num_multi_query_heads" in config else 1e4)
    dim = config["hidden_size"] // heads
    is_visual = np.zeros(count, bool)
    is_visual[places] = True
    positions = rotary_positions(is_visual)
    visual = is_visual & np.append(is_visual[1:], False)

    def of_kind(x: Array, language: str, vision: str) -> Array:
        kinds = [x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0) for name in (language, vision)]
        return np.where(visual[:, None], kinds[1], kinds[0])

    def turned(x: Array) -> Array:
        angles = positions[:, None] * theta ** (-np.arange(dim // 2) / (dim // 2))
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        left, right = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    if values is not None:
        x[places] = values
    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], eps)
        attn = f"{at}self_attn."
        packed = of_kind(h, f"{attn}language_expert_query_key_value", f"{attn}vision_expert_query_key_value")
        q, k, v = np.split(packed.reshape(count, -1, dim), [heads, heads + kv_heads], axis=1)
        mixed = attention(turned(q), turned(k), v)
        x = x + of_kind(mixed, f"{attn}language_expert_dense", f"{attn}vision_expert_dense")
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], eps)
        gate, up = (of_kind(h, *(f"{at}mlp.{kind}_mlp.{part}_proj" for kind in KINDS)) for part in ("gate", "up"))
        x = x + of_kind(silu(gate) * up, *(f"{at}mlp.{kind}_mlp.down_proj" for kind in KINDS))
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms_norm(x, w["model.norm.weight"], eps) @ output.T


KINDS = ("language", "vision")


def rotary_positions(is_visual: np.ndarray) -> np.ndarray:
    """The first and the last row of a picture count as words; the rows between them share a position."""
    is_inner = is_visual.copy()
    is_inner[1:] &= is_visual[:-1]
    is_inner[:-1] &= is_visual[1:]
    is_inner[0] = is_inner[-1] = False
    steps = ~is_inner[1:] | ~is_inner[:-1]
    return np.concatenate([[0], np.cumsum(steps)])
