"""Configurations of models with multi-head latent attention (MLA), and with sparse attention on top of it (DSA)."""

from dataclasses import dataclass

from sporelm.models.config import ModelConfig


@dataclass(frozen=True)
class LatentAttentionShape:
    """The shape of latent attention; `ModelConfig.head_dim` is the width of a query head, including its rotated part.

    kv_lora_rank          width of the latent from which keys and values are computed
    qk_rope_head_dim      channels of a head that are rotated; width of the key that all heads share
    v_head_dim            width of a head's values
    q_lora_rank           width of the latent from which queries are computed; 0: there is none
    yarn_log_multiplier   with YaRN, scores are multiplied by (1 + this * log(factor)) ** 2; None: they are not
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    yarn_log_multiplier: float | None = None


@dataclass(frozen=True, kw_only=True)
class LatentConfig(ModelConfig):
    """The configuration of a model with latent attention."""

    latent: LatentAttentionShape


@dataclass(frozen=True)
class LightningIndexerShape:
    """The shape of the lightning indexer, which selects the positions that a query attends to.

    num_heads       heads of its queries; they share one key per position
    head_dim        width of a head, including its rotated part
    topk            the largest number of positions that a query attends to
    shared_layers   layers without an indexer, which use the selection of the last layer before them that has one
    """

    num_heads: int
    head_dim: int
    topk: int
    shared_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SparseConfig(LatentConfig):
    """The configuration of a model with sparse attention."""

    indexer: LightningIndexerShape
