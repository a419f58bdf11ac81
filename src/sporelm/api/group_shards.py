"""The parts of a divided model that each rank has, as a worker group needs them: of pages, states and logits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.ranks.cache_shards import CacheShard, RankShards
from sporelm.engine.ranks.worker_group import LogitColumns
from sporelm.models.blocks.block_memory import State
from sporelm.models.sharding_plan import ShardingPlan

HEAD_AXIS = 2  # of canonical pages: [pages, 2, kv_heads, PAGE, head_dim]


class GroupShards(NamedTuple):
    """See `GroupMembers`."""

    pages: list[RankShards]
    states: list[RankShards]
    logits: list[LogitColumns]


def find_group_shards(plan: ShardingPlan, memory: Sequence[Any], vocab: int, parallel: ParallelConfig) -> GroupShards:
    """Return the parts of all ranks. `memory` is that of the whole model, `vocab` the columns of its logits."""
    page_numbers, state_numbers = number_caches(memory)
    pages: list[RankShards] = []
    states: list[RankShards] = []
    for rank in range(parallel.size):
        tp_rank = parallel.tp_rank(rank)
        of_pages: list[CacheShard] = []
        of_states: list[CacheShard] = []
        for index in plan.stage_caches[parallel.stage(rank)]:
            if index in state_numbers:
                of_states += [CacheShard(number) for number in state_numbers[index]]
                continue
            heads = plan.cache_heads[index]
            number = page_numbers[index]
            of_pages.append(CacheShard(number, HEAD_AXIS, *heads[tp_rank]) if heads else CacheShard(number))
        pages.append(of_pages)
        states.append(of_states)
    first = (parallel.pp - 1) * parallel.tp  # rank of the last stage, which has the logits
    if plan.logits:
        logits = [LogitColumns(first + tp_rank, *columns) for tp_rank, columns in enumerate(plan.logits)]
    else:
        logits = [LogitColumns(first, 0, vocab)] if first else []
    return GroupShards(pages, states, logits)


def number_caches(memory: Sequence[Any]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the number of each paged cache among the exported ones, and those of the arrays of each state."""
    pages: dict[int, int] = {}
    states: dict[int, list[int]] = {}
    num_arrays = 0
    for index, each in enumerate(memory):
        if isinstance(each, State):
            states[index] = list(range(num_arrays, num_arrays + len(each.shapes)))
            num_arrays += len(each.shapes)
        else:
            pages[index] = len(pages)
    return pages, states
