"""What each rank of a divided model holds: its weights, its KV heads, and the parts that several ranks have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sporelm.api.model_loader import ModelLoader, packed_sizes
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.capacity import page_bytes_by_part, state_bytes_by_part
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.params import Param
from sporelm.models.sharding_plan import RankWeights, ShardingPlan
from sporelm.ops.canonical_pages import KV_TYPES


@dataclass(frozen=True)
class RankFootprint:
    """The part of a model that one rank holds.

    sizes         the bytes of each of its weights after packing
    replicated    the weights that all ranks of its stage have whole
    memory        what the caches of its layers keep
    page_bytes    of one page across its layers
    state_bytes   of one sequence's recurrent state across its layers
    layers        the first one of its stage, and past the last
    """

    rank: int
    stage: int
    sizes: Mapping[Param, int]
    replicated: Sequence[Param]
    memory: Sequence[Any]
    page_bytes: int
    state_bytes: int
    layers: tuple[int, int]

    @cached_property
    def weight_bytes(self) -> int:
        return sum(self.sizes.values())

    @cached_property
    def replicated_bytes(self) -> int:
        return sum(self.sizes[param] for param in self.replicated)

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """The numbers of KV heads that its layers have, in order; latent rows have none."""
        return tuple(sorted({each.kv_heads for each in self.memory if isinstance(each, Paged)}))


def measure_rank(model: ModelLoader, plan: ShardingPlan, parallel: ParallelConfig, rank: int) -> RankFootprint:
    """Return what a rank holds of a model that is not loaded."""
    stage, tp_rank = parallel.stage(rank), parallel.tp_rank(rank)
    sizes = packed_sizes(model.formats, model.params, model.backend, RankWeights(plan, stage, tp_rank))
    local = plan.local_memory(model.model.memory(), tp_rank)
    memory = [local[index] for index in plan.stage_caches[stage]]
    return RankFootprint(
        rank,
        stage,
        sizes,
        [param for param in sizes if param.name not in plan.weights] if parallel.tp > 1 else [],
        memory,
        sum(page_bytes_by_part(memory, model.backend, KV_TYPES[model.kv])),
        sum(state_bytes_by_part(memory, model.backend)),
        parallel.layer_ranges(plan.num_layers)[stage],
    )
