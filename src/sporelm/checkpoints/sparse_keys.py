"""Sparse attention with a lightning indexer: keys and tensors that schemas share, and the base classes of those
schemas.

GGUF keys and tensors: llama.cpp's llama-arch.cpp and deepseek32.cpp. Hugging Face: `DeepseekV32Config` of transformers
and the state dict of `DeepseekV32ForCausalLM`.
"""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import V3_ROUTING, with_leading_dense_layers
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.hf_tensors import ATTENTION
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LATENT_HF_KEYS, LatentGgufSchema, LatentHfSchema
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_HEAD_DIM, MAX_HEADS, ModelConfig
from sporelm.models.latent_config import LightningIndexerShape, SparseConfig

MAX_TOPK: Final = 1 << 20
LAYER_TYPE: Final = "indexed_attention"  # of transformers, for each layer


def _with_query_latents(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    return tuple(
        each._replace(low=1, default=None) if each.attribute == "latent.q_lora_rank" else each for each in keys
    )


SPARSE_GGUF_KEYS: Final = (
    *_with_query_latents(LATENT_GGUF_KEYS),
    Key("indexer.num_heads", "attention.indexer.head_count", "u32", 1, MAX_HEADS),
    Key("indexer.head_dim", "attention.indexer.key_length", "u32", 2, MAX_HEAD_DIM),
    Key("indexer.topk", "attention.indexer.top_k", "u32", 1, MAX_TOPK),
)
SPARSE_HF_KEYS: Final = (
    *_with_query_latents(LATENT_HF_KEYS),
    Key("indexer.num_heads", "index_n_heads", "u32", 1, MAX_HEADS),
    Key("indexer.head_dim", "index_head_dim", "u32", 2, MAX_HEAD_DIM),
    Key("indexer.topk", "index_topk", "u32", 1, MAX_TOPK),
)
SPARSE_CONSTANTS: Final = {**V3_ROUTING, "rope_style": "adjacent"}
# Keys that would change the result, with their value in all models.
SPARSE_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "moe_layer_freq": (1,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "mlp_bias": (False,),
    "rope_interleave": (True,),
}
_INDEXER_NAMES: Final = {
    "q.weight": ("attn_q_b.weight", "wq_b.weight"),
    "k.weight": ("attn_k.weight", "wk.weight"),
    "k_norm.weight": ("k_norm.weight", "k_norm.weight"),
    "k_norm.bias": ("k_norm.bias", "k_norm.bias"),
    "weights.weight": ("proj.weight", "weights_proj.weight"),
}
INDEXER_GGUF_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.index_{name}": f"blk.{{}}.indexer.{gguf}" for name, (gguf, _) in _INDEXER_NAMES.items()
}
INDEXER_HF_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.index_{name}": f"{ATTENTION}indexer.{hf}" for name, (_, hf) in _INDEXER_NAMES.items()
}


def get_indexer(config: ModelConfig) -> LightningIndexerShape:
    """Return the shape of the indexer."""
    assert isinstance(config, SparseConfig)
    return config.indexer


def _check_indexer(config: ModelConfig, where: str) -> None:
    """Raise ModelFileError for indexer heads that are narrower than their rotary dimensions."""
    assert isinstance(config, SparseConfig)
    dim, rotary = config.indexer.head_dim, config.latent.qk_rope_head_dim
    if dim < rotary:
        what = f"heads of the indexer have {dim} dimensions, {rotary} are rotated"
        raise ModelFileError(f"{where}: {what}; index_head_dim must be at least qk_rope_head_dim")


class SparseGgufSchema(LatentGgufSchema):
    """GGUF files of models with sparse attention and DeepSeek V3's mixture."""

    constants = SPARSE_CONSTANTS
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        _check_indexer(config, gguf.where)
        if config.experts is not None and config.experts.scores != "sigmoid":
            what = f"expert_gating_func {config.experts.scores} is not supported; sigmoid is"
            raise UnsupportedModel(f"{gguf.where}: {what}")
        return config


class SparseHfSchema(LatentHfSchema):
    """Folders of models with sparse attention and DeepSeek V3's mixture."""

    constants = SPARSE_CONSTANTS
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        kinds = values.get("layer_types")
        if kinds is not None and (not isinstance(kinds, list) or any(kind != LAYER_TYPE for kind in kinds)):
            what = f"layer_types {format_value(kinds)} is not supported; {LAYER_TYPE} in all layers is"
            raise UnsupportedModel(f"{values.where}: {what}")
        config = super().config_from_json(with_leading_dense_layers(values), dtype)
        _check_indexer(config, values.where)
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {
            **super().extra_json(config),
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "num_nextn_predict_layers": 0,
        }
