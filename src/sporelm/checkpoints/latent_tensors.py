"""Tensors of multi-head latent attention that schemas share, by parameter.

GGUF: llama.cpp's llama-arch.cpp. Hugging Face: the state dict of `DeepseekV3ForCausalLM`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.hf_tensors import ATTENTION
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import SplitHeads, TakeRows, Transpose
from sporelm.models.latent_config import LatentConfig


def rotated_first_rows(config: LatentConfig) -> NDArray[np.int64]:
    """Return the rows of queries: rotary dimensions are last in the heads of files, and first in those of
    parameters."""
    head = np.roll(np.arange(config.head_dim), config.latent.qk_rope_head_dim)
    return (np.arange(config.heads)[:, None] * config.head_dim + head).reshape(-1)


def _key_rows(config: LatentConfig) -> NDArray[np.int64]:
    """Return the rows of keys in a tensor that has keys and values head by head."""
    keys = config.head_dim - config.latent.qk_rope_head_dim
    return _rows_of_heads(config, np.arange(keys))


def _value_rows(config: LatentConfig) -> NDArray[np.int64]:
    """Return the rows of values in the same tensor."""
    keys = config.head_dim - config.latent.qk_rope_head_dim
    return _rows_of_heads(config, np.arange(keys, keys + config.latent.v_head_dim))


def _rows_of_heads(config: LatentConfig, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    both = config.head_dim - config.latent.qk_rope_head_dim + config.latent.v_head_dim
    return (np.arange(config.heads)[:, None] * both + rows).reshape(-1)


def _kv_b_tensors(name: str) -> TensorTable:
    """Return both matrices of one tensor; that of keys is transposed, because it is multiplied with queries."""
    return {
        "layers.{}.attn_k_b.weight": StoredAs(name, TakeRows(_key_rows), SplitHeads(), Transpose("dequantize")),
        "layers.{}.attn_v_b.weight": StoredAs(name, TakeRows(_value_rows), SplitHeads()),
    }


LATENT_GGUF_TENSORS: Final[TensorTable] = {
    **{
        f"layers.{{}}.attn_{name}.weight": StoredAs(f"blk.{{}}.attn_{name}.weight", TakeRows(rotated_first_rows))
        for name in ("q", "q_b")
    },
    **{
        f"layers.{{}}.attn_{name}.weight": f"blk.{{}}.attn_{name}.weight"
        for name in ("q_a", "q_a_norm", "kv_a_norm", "k_b", "v_b")
    },
    "layers.{}.attn_kv_a.weight": "blk.{}.attn_kv_a_mqa.weight",
}
# Files written before April 2025, and those of MiniCPM3.
KV_B_GGUF_TENSORS: Final = _kv_b_tensors("blk.{}.attn_kv_b.weight")
LATENT_HF_TENSORS: Final[TensorTable] = {
    **{
        f"layers.{{}}.attn_{name}.weight": StoredAs(f"{ATTENTION}{name}_proj.weight", TakeRows(rotated_first_rows))
        for name in ("q", "q_b")
    },
    "layers.{}.attn_q_a.weight": f"{ATTENTION}q_a_proj.weight",
    "layers.{}.attn_q_a_norm.weight": f"{ATTENTION}q_a_layernorm.weight",
    "layers.{}.attn_kv_a.weight": f"{ATTENTION}kv_a_proj_with_mqa.weight",
    "layers.{}.attn_kv_a_norm.weight": f"{ATTENTION}kv_a_layernorm.weight",
    **_kv_b_tensors(f"{ATTENTION}kv_b_proj.weight"),
}
