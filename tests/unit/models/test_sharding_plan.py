"""Shards of weights, which are planned without any weight: whole heads, blocks and experts."""

from math import prod
from typing import Any

import pytest

from families import CASES, Case
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.models.sharding_plan import RankWeights, ShardingPlan, WeightSharding, plan_sharding
from sporelm.quant import format_of

# Small weights of recurrences, which every rank computes as a whole, by the end of their names.
COPIED = ("_conv.weight", "ssm.decay", "ssm.skip", "ssm_norm.weight", "lru_fade.weight", "lru_take.weight", ".bias")
SMALL = 0.002  # of a model's numbers
BY_NAME = {case.name: case for case in CASES}


def plan(case: Case, format_name: str = "F32", **parallel: Any) -> ShardingPlan:
    params = case.model.params()
    dtypes = {param.name: format_of(format_name) for param in params}
    return plan_sharding(case.model, params, dtypes, ParallelConfig(**parallel), 192)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_architecture_is_sharded(case: Case) -> None:
    """Every matrix that is not small, by rows, columns or experts."""
    params = case.model.params()
    sharding = plan(case, tp=2)
    total = sum(prod(param.shape) for param in params)
    copied = [
        param.name
        for param in params
        if param.name not in sharding.weights and prod(param.shape) > SMALL * total and not param.name.endswith(COPIED)
    ]
    if case.name == "jetmoe-odd-untied":  # one KV head, in experts whose rows are of several query heads
        copied = [name for name in copied if "attn_q_exps" not in name and "attn_output_exps" not in name]
    assert not copied


def test_heads_are_cut_with_their_groups() -> None:
    case = BY_NAME["llama"]
    config, sharding = case.model.config, plan(case, tp=2)
    dim, group = config.head_dim, config.heads // config.kv_heads
    keys = sharding.weights["layers.0.attn_k.weight"]
    assert keys.dim == 0
    assert all(start % dim == stop % dim == 0 for start, stop in keys.ranges)
    heads = tuple((start // dim, stop // dim) for start, stop in keys.ranges)
    assert sharding.cache_heads == (heads,) * len(case.model.memory())
    queries = WeightSharding(0, tuple((start * dim * group, stop * dim * group) for start, stop in heads))
    assert sharding.weights["layers.0.attn_q.weight"] == queries
    assert sharding.weights["layers.0.attn_o.weight"] == WeightSharding(1, queries.ranges)
    assert sharding.weights["output.weight"].ranges == sharding.logits
    assert sharding.logits[-1][1] == config.vocab


def test_blocks_stay_whole() -> None:
    """In columns; rows that feed such columns are sharded at the same places."""
    for format_name, block in (("Q8_0", 32), ("Q4_K", 256)):
        for case in (BY_NAME["llama"], BY_NAME["qwen3moe"]):
            sharding = plan(case, format_name, tp=2)
            for param in case.model.params():
                weight_sharding = sharding.weights.get(param.name)
                if weight_sharding and weight_sharding.dim == len(param.shape) - 1 > 0:
                    assert all(stop % block == 0 for _, stop in weight_sharding.ranges[:-1])


def test_experts_are_divided_whole_or_each() -> None:
    case = BY_NAME["qwen3moe"]
    name = "layers.1.ffn_down_exps.weight"
    count = next(param.shape[0] for param in case.model.params() if param.name == name)
    assert plan(case, tp=2).weights[name].dim == 2
    weight_sharding = plan(case, tp=2, expert_parallel=True).weights[name]
    assert (weight_sharding.dim, weight_sharding.ranges[-1][1]) == (0, count)


def test_a_stage_has_the_weights_of_its_layers() -> None:
    case = BY_NAME["llama"]
    sharding = plan(case, pp=2)
    assert not sharding.weights
    first, last = (RankWeights(sharding, stage, 0) for stage in range(2))
    half = len(case.model.layers) // 2
    assert all(map(first.has, ("embedding.weight", "layers.0.attn_q.weight")))
    assert all(map(last.has, (f"layers.{half}.attn_q.weight", "output_norm.weight")))
    assert not first.has(f"layers.{half}.attn_q.weight")
    assert not last.has("layers.0.attn_q.weight")
    assert sharding.stage_caches == (tuple(range(half)), tuple(range(half, len(case.model.layers))))
    tied = plan(BY_NAME["llama4-odd-tied"], pp=2)
    assert all(RankWeights(tied, stage, 0).has("embedding.weight") for stage in range(2))


def test_layers_that_share_keys_and_values_have_their_caches_in_both_stages() -> None:
    sharding = plan(BY_NAME["gemma3n"], pp=2)
    assert set(sharding.stage_caches[0]) & set(sharding.stage_caches[1])


def test_a_part_knows_its_shapes() -> None:
    case = BY_NAME["llama"]
    sharding = plan(case, tp=3, shares=(1, 1, 2))
    for param in case.model.params():
        parts = [RankWeights(sharding, 0, rank) for rank in range(3)]
        if param.name in sharding.weights:
            dim = sharding.weights[param.name].dim
            assert sum(part.shape(param)[dim] for part in parts) == param.shape[dim] or "attn_" in param.name
            assert all(part.range(param.name) is not None for part in parts)
        else:
            assert all(part.shape(param) == param.shape and part.range(param.name) is None for part in parts)
