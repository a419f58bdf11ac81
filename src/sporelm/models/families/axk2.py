"""A.X K2: DeepSeek V3.2 with norms and attention that are opened and shut by what a row makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints import latent, sparse
from sporelm.checkpoints.experts import V3_CHOICE
from sporelm.checkpoints.family import Family, Field, HfClass
from sporelm.checkpoints.tensor_names import Names, Stored, Table, changed
from sporelm.models.blocks.gated_sparse_attention import GatedSparseLayer
from sporelm.models.blocks.sparse_attention import run_sparse_layers
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.deepseek32 import FIELDS, NAMES
from sporelm.models.families.deepseek_words import FLAGS
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture

SHAPE: dict[str, Any] = {"kv_lora_rank": 128, "q_lora_rank": 384, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64}
SHAPE |= {"v_head_dim": 64, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}
SHAPE |= {"moe_intermediate_size": 512, "first_k_dense_replace": 1, "norm_topk_prob": True, "scoring_func": "sigmoid"}
SHAPE |= {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 16, "gated_norm_rank": 16}
SHAPE |= {"routed_scaling_factor": 2.5, "max_position_embeddings": 131072}


@dataclass(frozen=True)
class AxShape(sparse.SparseShape):
    """With the rank of the matrices that open norms."""

    norm_rank: int = 0


def _rows(of_gates: bool) -> Callable[[ModelConfig], NDArray[np.int64]]:
    """Of a tensor that has, for each head, its query and what opens its values: the rows of one."""

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        query, values = config.head_dim, config.own.value
        own = np.arange(query, query + values) if of_gates else np.roll(np.arange(query), config.own.rotary)
        return (np.arange(config.heads)[:, None] * (query + values) + own).reshape(-1)

    return rows


def _norm(ours: str, gguf: str, hf: str) -> Table:
    """Names of a norm and of the matrices that open it, by its makers' names; transformers' modules have others."""
    layer = f"model.layers.{{}}.{hf}."
    return tuple(
        Names(f"layers.{{}}.{ours}{end}.weight", f"blk.{{}}.{gguf}{end}.weight", f"{layer}{part}.weight")
        for end, part in (("", "norm"), ("_a", "W_down"), ("_b", "W_up"))
    )


def _both(part: str, of_gates: bool) -> Names:
    both = Stored(f"{latent.BLOCK}q_b_proj.weight", _rows(of_gates))
    return Names(f"layers.{{}}.attn_{part}.weight", f"blk.{{}}.attn_{part}.weight", both)


@architecture(
    Family(
        "axk2",
        (HfClass("AXK2ForCausalLM", "axk2", SHAPE, FLAGS),),
        (*FIELDS, Field("own.norm_rank", "attention.norm_rank", "u32", "gated_norm_rank", 1, MOST_WIDTH)),
        changed(
            NAMES,
            *_norm("attn_norm", "attn_norm", "input_layernorm"),
            *_norm("ffn_gated_norm", "ffn_norm", "post_attention_layernorm"),
            _both("q_b", False),
            _both("gate", True),
        ),
        fixed=V3_CHOICE | {"rope_style": "adjacent"},
        only=sparse.ONLY | {"n_group": (None,), "topk_group": (None,)},
        finish=sparse.finished,
        regrouped=latent.regrouped,
        reworded=sparse.reworded,
        said=lambda config: latent.said(config, "axk2", absorbed=True),
        words=sparse.words,
        unsaid=latent.unsaid,
        partial_rotary=True,
        further_layers=True,
        own=AxShape,
        modules=((".W_down.", ".mlp.fc1."), (".W_up.", ".mlp.fc2."), (".q_b_proj.", ".q_gate_proj.")),
    )
)
class AXK2(Decoder):
    """Latent attention over chosen positions, then a mixture, or a dense block in the first layers."""

    layers: Sequence[GatedSparseLayer]

    def layer(self, config: ModelConfig, index: int) -> GatedSparseLayer:
        return GatedSparseLayer(config, index, "half", config.own.norm_rank)

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        return run_sparse_layers(self.layers, x, step, weights, caches)
