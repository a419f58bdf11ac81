"""The parts of each rank, from a model's sharding plan."""

from sporelm.api.group_shards import find_group_shards, number_caches
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.ranks.cache_shards import CacheShard
from sporelm.engine.ranks.worker_group import LogitColumns
from sporelm.models.blocks.block_memory import Paged, State
from sporelm.models.sharding_plan import ShardingPlan

HEADS = ((0, 1), (1, 4))
MEMORY = [State(((2,), (3,))), Paged(4, 8), State(((5,),)), Paged(4, 8)]


def make_plan(parallel: ParallelConfig, stages: tuple[tuple[int, ...], ...], logits: bool) -> ShardingPlan:
    columns = ((0, 10), (10, 50)) if logits else ()
    return ShardingPlan(parallel, {}, ((), HEADS, (), ()), columns, 4, (frozenset(),) * parallel.pp, stages)


def test_caches_are_numbered_as_they_are_exported() -> None:
    assert number_caches(MEMORY) == ({1: 0, 3: 1}, {0: [0, 1], 2: [2]})


def test_ranks_of_one_stage_have_heads_and_columns() -> None:
    parallel = ParallelConfig(tp=2)
    found = find_group_shards(make_plan(parallel, ((0, 1, 2, 3),), True), MEMORY, 50, parallel)
    assert found.pages == [[CacheShard(0, 2, 0, 1), CacheShard(1)], [CacheShard(0, 2, 1, 4), CacheShard(1)]]
    assert found.states == [[CacheShard(0), CacheShard(1), CacheShard(2)]] * 2
    assert found.logits == [LogitColumns(0, 0, 10), LogitColumns(1, 10, 50)]


def test_stages_have_layers_and_the_last_one_has_logits() -> None:
    parallel = ParallelConfig(tp=2, pp=2)
    found = find_group_shards(make_plan(parallel, ((0, 1), (2, 3)), True), MEMORY, 50, parallel)
    assert found.pages == [[CacheShard(0, 2, 0, 1)], [CacheShard(0, 2, 1, 4)], [CacheShard(1)], [CacheShard(1)]]
    assert found.states == [[CacheShard(0), CacheShard(1)]] * 2 + [[CacheShard(2)]] * 2
    assert found.logits == [LogitColumns(2, 0, 10), LogitColumns(3, 10, 50)]
    whole = find_group_shards(make_plan(parallel, ((0, 1), (2, 3)), False), MEMORY, 50, parallel)
    assert whole.logits == [LogitColumns(2, 0, 50)]


def test_logits_of_one_stage_that_are_not_cut_are_on_rank_0() -> None:
    parallel = ParallelConfig(tp=2)
    assert find_group_shards(make_plan(parallel, ((0, 1, 2, 3),), False), MEMORY, 50, parallel).logits == []
