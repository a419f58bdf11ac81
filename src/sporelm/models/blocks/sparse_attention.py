"""Sparse latent attention: a query attends to the positions that a lightning indexer scores highest (DeepSeek-AI
2025)."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import BlockMemory, Latent, list_memories
from sporelm.models.blocks.latent_attention import EPS, LatentAttention
from sporelm.models.blocks.layer import Layer
from sporelm.models.blocks.layer_norm import LayerNorm
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mixture import feed_forward
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.latent_config import SparseConfig
from sporelm.models.params import Param
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.spec import require_fixed, spec_of


class Indexer:
    """The lightning indexer: scores sum(weight * relu(query key)) over heads. Queries are projections of attention's
    query latent; the weights, and the key that all heads share, are projections of the row. `style` is that of the
    rotation of the leading channels of a head. A factor of all scores of a row would change nothing."""

    def __init__(self, name: str, config: SparseConfig, style: str) -> None:
        heads, dim = config.indexer.num_heads, config.indexer.head_dim
        self.q = Linear(f"{name}.index_q", heads * dim, config.latent.q_lora_rank)
        self.k = Linear(f"{name}.index_k", dim, config.width)
        self.norm = LayerNorm(f"{name}.index_k_norm", dim, EPS)
        self.weights = Linear(f"{name}.index_weights", heads, config.width)
        self.dim = dim
        self.topk = config.indexer.topk
        self.style = style
        self.memory = Latent(dim, 0)

    def params(self) -> list[Param]:
        return [param for part in (self.q, self.k, self.norm, self.weights) for param in part.params()]

    def __call__(
        self, q: Any, row: Any, shares: Any, step: StepInputs, weights: Mapping[str, Any], keys: Any
    ) -> Any:  # q [tokens, heads * dim], row [tokens, dim], shares [tokens, heads]
        """Store the key of `row`. Return the slots that each row attends to, int32 [tokens, topk], or fewer if the
        pages of a sequence have fewer."""
        places = (step.positions, weights[ROPE])
        key = ops.rope(self.norm(row, weights), *places, head_dim=self.dim, style=self.style)
        ops.store_rows(key, keys, step.slots)
        q = ops.rope(q, *places, head_dim=self.dim, style=self.style)
        count = min(self.topk, require_fixed(spec_of(step.pages).shape[1]) * PAGE)
        return ops.topk_indexer(q, shares, keys, step.starts, step.lengths, step.pages, k=count)


class SparseAttention(LatentAttention):
    """o(values(softmax(scores) latents)) over the positions that its indexer selects; layers without an indexer use the
    selection of the last layer before them (GLM-5.2)."""

    def __init__(self, name: str, config: SparseConfig, index: int, style: str) -> None:
        super().__init__(name, config, config.latent)
        self.indexer = None if index in config.indexer.shared_layers else Indexer(name, config, style)
        rank = config.latent.kv_lora_rank
        latent = Latent(rank + config.latent.qk_rope_head_dim, rank, config.indexer.topk)
        self.memories: BlockMemory = latent if self.indexer is None else (latent, self.indexer.memory)

    def params(self) -> list[Param]:
        return [*super().params(), *(self.indexer.params() if self.indexer else [])]

    def select_and_attend(
        self, x: Any, chosen: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any, *keys: Any
    ) -> tuple[Any, Any]:  # x [tokens, width], chosen [tokens, count] or None
        """Return the output of attention, and the selected slots."""
        assert self.q_a is not None
        if self.indexer is None:
            low, row = apply_linears(x, weights, self.q_a, self.kv_a)
            q = self.q(self.q_norm(low, weights), weights)
        else:
            low, row, key, shares = apply_linears(x, weights, self.q_a, self.kv_a, self.indexer.k, self.indexer.weights)
            q, own = apply_linears(self.q_norm(low, weights), weights, self.q, self.indexer.q)
            chosen = self.indexer(own, key, shares, step, weights, *keys)
        latent, q = self.absorb(q, row, step, weights, cache)
        mixed = ops.sparse_mla(latent, q, cache, chosen, heads=self.heads, scale=self.scale)
        return self.project_values(mixed, weights), chosen


class SparseLayer(Layer):
    """The usual layer with sparse attention."""

    attention: SparseAttention

    def __init__(self, config: SparseConfig, index: int, style: str) -> None:
        name = f"layers.{index}"
        before, between = (RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn"))
        super().__init__(
            before, SparseAttention(name, config, index, style), between, feed_forward(name, config, index)
        )

    def memory(self) -> BlockMemory:
        return self.attention.memories

    def run(self, x: Any, chosen: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        """Return x [tokens, width] after the layer, and the selected slots."""
        assert self.attention_norm is not None
        assert self.mlp_norm is not None
        assert self.mlp is not None
        mixed, chosen = self.attention.select_and_attend(
            self.attention_norm(x, weights), chosen, step, weights, *caches
        )
        x = ops.add(x, mixed)
        return ops.add(x, self.mlp(self.mlp_norm(x, weights), weights)), chosen


def run_sparse_layers(
    layers: Sequence[SparseLayer], x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]
) -> Any:
    """Return x [tokens, width] after all layers. A layer may use the selection of the one before it."""
    left, chosen = iter(caches), None
    for layer in layers:
        x, chosen = layer.run(x, chosen, step, weights, [*islice(left, len(list_memories(layer.memory())))])
    return x
