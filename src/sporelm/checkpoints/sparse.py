"""What files call the numbers and the weights of the lightning indexer, by which sparse attention chooses positions.

GGUF keys and tensors: llama.cpp's llama-arch.cpp and deepseek32.cpp. Hugging Face: `DeepseekV32Config` of transformers
and the state dict of `DeepseekV32ForCausalLM`.
"""

from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints import latent
from sporelm.checkpoints.experts import with_leading
from sporelm.checkpoints.family import Field
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Table
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, ModelConfig

MOST_CHOSEN = 1 << 20
LAYER_TYPE = "indexed_attention"  # of transformers, for each layer


@dataclass(frozen=True)
class SparseShape(latent.LatentShape):
    """With the numbers of the indexer, whose heads share one key a position."""

    index_heads: int = 0
    index_dim: int = 0  # of a head, the rotated part included
    chosen: int = 0  # positions that a query sees at most
    sharing: frozenset[int] = frozenset()  # layers that see what the last one before them with an indexer chose


SPARSE_FIELDS = (
    *(each._replace(low=1, default=None) if each.ours == "own.q_rank" else each for each in latent.LATENT_FIELDS),
    Field("own.index_heads", "attention.indexer.head_count", "u32", "index_n_heads", 1, MOST_HEADS),
    Field("own.index_dim", "attention.indexer.key_length", "u32", "index_head_dim", 2, MOST_HEAD_DIM),
    Field("own.chosen", "attention.indexer.top_k", "u32", "index_topk", 1, MOST_CHOSEN),
)
INDEX_NAMES: Table = tuple(
    Names(f"layers.{{}}.index_{ours}", f"blk.{{}}.indexer.{gguf}", f"{latent.BLOCK}indexer.{hf}")
    for ours, gguf, hf in (
        ("q.weight", "attn_q_b.weight", "wq_b.weight"),
        ("k.weight", "attn_k.weight", "wk.weight"),
        ("k_norm.weight", "k_norm.weight", "k_norm.weight"),
        ("k_norm.bias", "k_norm.bias", "k_norm.bias"),
        ("weights.weight", "proj.weight", "weights_proj.weight"),
    )
)
# What changes the result, and is never anything else in the models that there are.
ONLY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "attention_bias": (False,), "moe_layer_freq": (1,)}
ONLY |= {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "mlp_bias": (False,), "rope_interleave": (True,)}


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """config.json in the words of latent attention. Raises UnsupportedModel for a layer without an indexer."""
    kinds = values.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != LAYER_TYPE for kind in kinds)):
        raise UnsupportedModel(f"layer_types {shown(kinds)} is not supported; {LAYER_TYPE} in all layers is")
    return with_leading(latent.reworded(values))


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Latent attention whose indexer's heads are rotated in part. Raises ModelFileError if they are too narrow,
    UnsupportedModel for another choice of experts than DeepSeek V3's."""
    config = latent.finished(config, values, kind)
    own, experts = config.own, config.experts
    if own.index_dim < own.rotary:
        what = f"heads of the indexer have {own.index_dim} numbers, {own.rotary} are rotated"
        raise ModelFileError(f"{values.where}: {what}; index_head_dim must be at least qk_rope_head_dim")
    if kind != HF and experts is not None and experts.scores != "sigmoid":
        raise UnsupportedModel(f"{values.where}: expert_gating_func {experts.scores} is not supported; sigmoid is")
    return config


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    return {**latent.words(config), "topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 0}
