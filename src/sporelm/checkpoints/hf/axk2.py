"""Hugging Face folders of A.X K2."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.hf.deepseek2 import RENORMALIZE_KEY
from sporelm.checkpoints.hf.deepseek32 import DEEPSEEK32_KEYS, DEEPSEEK32_TENSORS
from sporelm.checkpoints.hf_tensors import ATTENTION, LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import SPARSE_SUPPORTED, SparseHfSchema
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.axk2 import AXK2
from sporelm.models.config import MAX_WIDTH
from sporelm.models.latent_config import LatentConfig

# Norms with a gate -> their modules.
GATED_NORMS: Final = {"attn_norm": "input_layernorm", "ffn_gated_norm": "post_attention_layernorm"}


def _query_rows(config: LatentConfig) -> NDArray[np.int64]:
    """Return the rows of queries in a tensor that has, for each head, its query and then the gate of its values."""
    return _rows_of_heads(config, np.roll(np.arange(config.head_dim), config.latent.qk_rope_head_dim))


def _gate_rows(config: LatentConfig) -> NDArray[np.int64]:
    """Return the rows of gates in the same tensor."""
    return _rows_of_heads(config, np.arange(config.head_dim, config.head_dim + config.latent.v_head_dim))


def _rows_of_heads(config: LatentConfig, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    both = config.head_dim + config.latent.v_head_dim
    return (np.arange(config.heads)[:, None] * both + rows).reshape(-1)


@register
class AXK2ForCausalLM(SparseHfSchema):
    """A.X K2."""

    model_type = "axk2"
    architecture = AXK2
    keys = (*DEEPSEEK32_KEYS, Key("gated_norm_rank", "gated_norm_rank", "u32", 1, MAX_WIDTH))
    class_keys = RENORMALIZE_KEY
    defaults = {
        "kv_lora_rank": 128,
        "q_lora_rank": 384,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 16,
        "gated_norm_rank": 16,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 131072,
    }
    supported = {**SPARSE_SUPPORTED, "n_group": (None,), "topk_group": (None,)}
    tensors = {
        **DEEPSEEK32_TENSORS,
        **{
            f"layers.{{}}.{name}{end}.weight": f"{LAYER}{module}.{part}.weight"
            for name, module in GATED_NORMS.items()
            for end, part in (("", "norm"), ("_a", "W_down"), ("_b", "W_up"))
        },
        "layers.{}.attn_q_b.weight": StoredAs(f"{ATTENTION}q_b_proj.weight", TakeRows(_query_rows)),
        "layers.{}.attn_gate.weight": StoredAs(f"{ATTENTION}q_b_proj.weight", TakeRows(_gate_rows)),
    }
    module_names = ((".W_down.", ".mlp.fc1."), (".W_up.", ".mlp.fc2."), (".q_b_proj.", ".q_gate_proj."))
