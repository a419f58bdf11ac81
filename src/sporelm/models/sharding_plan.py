"""Decide how a model's weights, caches and logits are sharded for the ranks of a stage.

The model is traced twice without weights. The first trace tells which ops read each weight; the second one, with the
sharding rules, tells which caches are sharded. A weight that no rule can shard is copied to every rank (ADR 0056).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.placement import Sharded, Sharder, Table, UndecidedCache
from sporelm.distributed.rank_ranges import Ranges, divide, scale_ranges, share_units
from sporelm.distributed.sharding_rules import RULES
from sporelm.distributed.stage_split import assign_stages, extract_stage
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.inputs import compute, input_specs
from sporelm.models.meta_tensor import MetaTensor, create_meta_caches
from sporelm.models.params import Columns, Param, Rows
from sporelm.ops import Graph
from sporelm.ops.op import leaves
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import F32, dtype_of

PLANNED_TOKENS, PLANNED_PAGES = 4, 2  # of the steps that are traced
EMBEDDING, LINEAR, EXPERTS, HEADS = ops.embedding.name, ops.linear.name, ops.linear_experts.name, ops.linear_heads.name
NORMS = {ops.rms_norm.name, ops.layer_norm.name}


@dataclass(frozen=True)
class WeightSharding:
    """The dimension in which a weight is sharded, and the range of each rank."""

    dim: int
    ranges: Ranges

    def shape(self, whole: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part."""
        start, stop = self.ranges[rank]
        return (*whole[: self.dim], stop - start, *whole[self.dim + 1 :])


@dataclass(frozen=True)
class ShardingPlan:
    """How one model is divided over ranks: the shards of its weights, caches and logits, and its stages.

    parallel     the ranks
    weights      the sharding of each weight that is not copied, by name
    cache_heads  for each memory of the model the KV heads of each rank; (): all of them
    logits       the tokens whose scores each rank of the last stage has; (): all of them
    num_layers   of the model
    stage_weights, stage_caches   the names of the weights, and the numbers of the memories, that each stage uses
    """

    parallel: ParallelConfig
    weights: Mapping[str, WeightSharding]
    cache_heads: tuple[Ranges, ...]
    logits: Ranges
    num_layers: int
    stage_weights: tuple[frozenset[str], ...]
    stage_caches: tuple[tuple[int, ...], ...]

    def local_memory(self, memory: Sequence[Any], tp_rank: int) -> list[Any]:
        """Return what the caches of a rank keep: `memory` with the rank's KV heads."""
        found = []
        for each, heads in zip(memory, self.cache_heads, strict=True):
            found.append(replace(each, kv_heads=heads[tp_rank][1] - heads[tp_rank][0]) if heads else each)
        return found

    def layer_stage(self, name: str) -> int | None:
        """Return the stage of a weight's layer; None for a weight of no layer."""
        return stage_of_layer(self.parallel, self.num_layers, name)

    def local_shape(self, param: Param, tp_rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part of a weight."""
        sharding = self.weights.get(param.name)
        return sharding.shape(param.shape, tp_rank) if sharding else param.shape


class RankWeights(NamedTuple):
    """The part of a model's weights that one rank has: of a stage, and of each weight that is sharded."""

    plan: ShardingPlan
    stage: int
    tp_rank: int

    def has(self, name: str) -> bool:
        """Return whether the stage uses a weight."""
        return name in self.plan.stage_weights[self.stage]

    def shape(self, param: Param) -> tuple[int, ...]:
        """Return the shape of the rank's part of a weight."""
        return self.plan.local_shape(param, self.tp_rank)

    def range(self, name: str) -> tuple[int, int, int] | None:
        """Return the dimension, start and stop of the rank's part of a weight; None if it has all of it."""
        sharding = self.plan.weights.get(name)
        return None if sharding is None else (sharding.dim, *sharding.ranges[self.tp_rank])


class PlannedGroup(NamedTuple):
    """A rank of a group that is only planned: it cannot exchange anything."""

    rank: int
    size: int
    is_on_device: bool = False

    def all_gather(self, array: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
        raise NotImplementedError

    def send(self, array: NDArray[Any], target: int) -> None:
        raise NotImplementedError

    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int) -> NDArray[Any]:
        raise NotImplementedError


class WeightUse(NamedTuple):
    """The ops that read a weight, and as which of their arguments."""

    readers: frozenset[tuple[str, int]]

    def is_only(self, *names: str) -> bool:
        """Return whether only these ops read it, as their second argument."""
        return bool(self.readers) and all(name in names and index == 1 for name, index in self.readers)


def plan_sharding(
    model: Any, params: Sequence[Param], dtypes: Mapping[str, Any], parallel: ParallelConfig, context: int = PAGE
) -> ShardingPlan:
    """Return how a decoder is divided over its ranks.

    dtypes   the number format in which each matrix is packed, by name; a weight without one is float32

    Raises UnsupportedModel if the sharding rules cannot run the model in any way.
    """
    planner = ShardingPlanner(model, params, dtypes, parallel, context)
    reason: UnsupportedModel | None = None
    if parallel.tp == 1:
        return planner.plan(ExpertSharding.NONE)
    expert_shardings = [ExpertSharding.WHOLE, ExpertSharding.WHOLE_MLP]  # never copied where they are to be divided
    for expert_sharding in expert_shardings if parallel.expert_parallel else ExpertSharding:
        try:
            return planner.plan(expert_sharding)
        except UnsupportedModel as error:
            reason = error
    raise UnsupportedModel(f"{model.config.name} cannot be divided for {parallel.tp} ranks: {reason}")


class ExpertSharding(Enum):
    """How the matrices of experts are divided, in the order in which a planner tries it."""

    MATRICES = "each matrix by rows or columns"
    WHOLE = "whole experts"
    WHOLE_MLP = "whole experts of feed-forward blocks, and matrices of others by rows or columns"
    NONE = "not at all"

    def divides_whole(self, param: Param) -> bool:
        """Return whether the experts of a weight are divided whole."""
        return self is ExpertSharding.WHOLE or (self is ExpertSharding.WHOLE_MLP and ".ffn_" in param.name)


class ShardingPlanner:
    """Plans how one model is sharded."""

    def __init__(
        self, model: Any, params: Sequence[Param], dtypes: Mapping[str, Any], parallel: ParallelConfig, context: int
    ) -> None:
        self.model, self.params, self.parallel = model, params, parallel
        self.dtypes = {each.name: weight_dtype(each, dtypes) for each in params}
        self.tables = model.tables(max(context, PLANNED_PAGES * PAGE))
        self.specs = input_specs(PLANNED_TOKENS, PLANNED_TOKENS, PLANNED_TOKENS, PLANNED_PAGES)
        self.uses, self.biases = self._find_uses()

    def plan(self, expert_sharding: ExpertSharding) -> ShardingPlan:
        """Return the plan. Raises UnsupportedModel if a rule is missing for experts that are divided in this way."""
        shardings = dict(self._choose_shardings(expert_sharding)) if self.parallel.tp > 1 else {}
        num_dims = {each.name: len(each.shape) for each in self.params}
        for weight, bias in self.biases.items():
            shardings.pop(bias, None)
            if weight not in shardings:
                continue
            if shardings[weight].dim < num_dims[bias]:  # sharding by columns leaves [out], or [experts, out], whole
                shardings[bias] = shardings[weight]
        return self._trace_rules(shardings)

    def _trace(self, weights: Mapping[str, Any], caches: Sequence[Any]) -> tuple[Graph, dict[str, Any]]:
        graph = Graph()
        values = {name: graph.input(name, spec) for name, spec in self.specs.items()}
        return graph, compute(self.model.forward, values, weights, caches)

    def _find_uses(self) -> tuple[dict[str, WeightUse], dict[str, str]]:
        """Return how each weight is read, and the bias of each matrix that has one."""
        weights = {each.name: MetaTensor(each.shape, self.dtypes[each.name]) for each in self.params}
        tables = {name: MetaTensor(table.shape, dtype_of(table)) for name, table in self.tables.items()}
        graph, _ = self._trace({**weights, **tables}, create_meta_caches(self.model.memory()))
        names = {id(value): name for name, value in weights.items()}
        readers: dict[str, set[tuple[str, int]]] = {}
        biases: dict[str, str] = {}
        for call in graph.calls:
            for index, arg in enumerate(call.args):
                for value in leaves((arg,)):
                    if id(value) in names:
                        readers.setdefault(names[id(value)], set()).add((call.op.name, index))
            place = {LINEAR: 2, EXPERTS: 3}.get(call.op.name)
            if place is not None and len(call.args) > place and id(call.args[1]) in names:
                bias = names.get(id(call.args[place]))
                if bias is not None:
                    biases[names[id(call.args[1])]] = bias
        return {name: WeightUse(frozenset(found)) for name, found in readers.items()}, biases

    def _choose_shardings(self, expert_sharding: ExpertSharding) -> Iterator[tuple[str, WeightSharding]]:
        groups: dict[tuple[str, int], list[Param]] = {}
        for param in self.params:
            use = self.uses.get(param.name)
            if use is None or param.name in self.biases.values():
                continue
            if use.is_only(EXPERTS):
                if expert_sharding is ExpertSharding.NONE:
                    continue
                if expert_sharding.divides_whole(param):
                    yield from self._shard_dim(param, 0)
                    continue
            if param.split is not None and self._is_shardable(param, use):
                units = param.shape[_dim_of(param)] // param.split.unit
                groups.setdefault((_layer_of(param.name), units), []).append(param)
            elif use.is_only(LINEAR) or (use.is_only(LINEAR, EMBEDDING) and not self._fills):
                yield from self._shard_dim(param, 0)
            elif use.is_only(EXPERTS):
                yield from self._shard_dim(param, 1)
        for (_, units), members in groups.items():
            yield from self._shard_group(units, members)

    @property
    def _fills(self) -> bool:
        return bool(getattr(getattr(self.model, "embedding", None), "fills", False))

    def _is_shardable(self, param: Param, use: WeightUse) -> bool:
        names = {name for name, _ in use.readers}
        if len(param.shape) == 1:
            return names <= {ops.attention.name}
        return names <= {LINEAR} or names <= {EXPERTS} or names <= {HEADS} or names <= NORMS

    def _shard_dim(self, param: Param, dim: int) -> Iterator[tuple[str, WeightSharding]]:
        block = self._block(param) if dim == len(param.shape) - 1 else 1
        ranges = divide(param.shape[dim], self.parallel.tp_shares, block)
        if ranges is not None:
            yield param.name, WeightSharding(dim, ranges)

    def _block(self, param: Param) -> int:
        """Return the columns that cannot be separated: a block of the number format, or a group of activations."""
        dtype = self.dtypes[param.name]
        _, _, group = getattr(dtype, "activation", "").partition("/")
        return lcm(getattr(dtype, "values", 1), int(group or 1))

    def _shard_group(self, units: int, members: Sequence[Param]) -> Iterator[tuple[str, WeightSharding]]:
        """Yield the shardings of the weights of a layer that have as many units: all at the same ones, if possible."""
        shares = self.parallel.tp_shares
        columns = [each for each in members if isinstance(each.split, Columns)]
        step = lcm(1, *(self._block(each) // gcd(_unit(each), self._block(each)) for each in columns))
        common = divide(units, shares, step)
        if common is not None:
            for each in members:
                yield each.name, WeightSharding(_dim_of(each), scale_ranges(common, _unit(each)))
            return
        common = divide(units, shares)
        parts = max((each.split.parts for each in members if each.split), default=1)
        inner: Ranges | None = None
        if common is None and parts > 1:
            shared = share_units(units, parts, shares)
            if shared is not None:
                common, inner = shared
        for each in members:
            assert each.split is not None
            ranges = None if common is None else scale_ranges(common, _unit(each))
            if inner is not None and each.split.parts == parts:
                ranges = scale_ranges(inner, _unit(each) // parts)
            if isinstance(each.split, Columns) and ranges is not None:
                ranges = ranges if all(stop % self._block(each) == 0 for _, stop in ranges[:-1]) else None
            if ranges is not None:
                yield each.name, WeightSharding(_dim_of(each), ranges)
            elif len(each.shape) == 2 and self.uses[each.name].is_only(LINEAR):
                yield from self._shard_dim(each, _dim_of(each))

    def _trace_rules(self, shardings: Mapping[str, WeightSharding]) -> ShardingPlan:
        """Trace the model with the rules, which decide how caches and logits are sharded, and split the graph."""

        def constant(array: NDArray[Any]) -> MetaTensor:
            return MetaTensor(array.shape, dtype_of(array))

        sharder = Sharder(PlannedGroup(0, self.parallel.tp), RULES, constant)
        weights = {
            each.name: MetaTensor(
                shardings[each.name].shape(each.shape, 0) if each.name in shardings else each.shape, dtype
            )
            for each, dtype in zip(self.params, self.dtypes.values(), strict=True)
        }
        sharded: dict[str, Any] = dict(weights)
        for name, sharding in shardings.items():
            sharded[name] = Sharded(sharder, weights[name], sharding.dim, sharding.ranges, is_constant=True)
        for name, table in self.tables.items():
            sharded[name] = Table(sharder, MetaTensor(table.shape, dtype_of(table)), partial(np.asarray, table))
        memory, caches = self.model.memory(), create_meta_caches(self.model.memory())
        if self.parallel.tp > 1:
            caches = [
                UndecidedCache(sharder, each, partial(_local_cache, each)) if isinstance(kept, Paged) else each
                for kept, each in zip(memory, caches, strict=True)
            ]
        graph, outputs = self._trace(sharded, caches)
        logits = outputs["logits"]
        heads = tuple((cache.heads or ()) if isinstance(cache, UndecidedCache) else () for cache in caches)
        graph.outputs = local_outputs(sharder, outputs)
        stage_weights, stage_caches = self._split_stages(graph, weights, caches)
        ranges = logits.ranges if isinstance(logits, Sharded) else ()
        num_layers = len(self.model.layers)
        return ShardingPlan(self.parallel, shardings, heads, ranges, num_layers, stage_weights, stage_caches)

    def _split_stages(
        self, graph: Graph, weights: Mapping[str, MetaTensor], caches: Sequence[Any]
    ) -> tuple[tuple[frozenset[str], ...], tuple[tuple[int, ...], ...]]:
        """Return the names of the weights, and the numbers of the memories, that each stage uses."""
        if self.parallel.pp == 1:
            return (frozenset(weights),), (tuple(range(len(caches))),)
        num_layers = len(self.model.layers)
        names = {id(value): name for name, value in weights.items()}
        numbers: dict[int, int] = {}
        for number, cache in enumerate(caches):
            parts = cache if isinstance(cache, tuple) else (getattr(cache, "local", cache),)
            numbers |= {id(part): number for part in parts}

        def stage_of(value: Any) -> int | None:
            name = names.get(id(value))
            return None if name is None else stage_of_layer(self.parallel, num_layers, name)

        calls = assign_stages(graph, stage_of, lambda value: id(value) not in names and id(value) not in numbers)
        stages = range(self.parallel.pp)
        used = [{id(value) for value in calls.constants(graph, stage)} for stage in stages]
        for stage in stages:  # raises if a value cannot pass
            extract_stage(
                graph, calls, stage, self.parallel.pp, PlannedGroup(stage, self.parallel.pp), lambda each: each
            )
        read = set().union(*used)
        # Weights that no step reads, such as a classifier, are with the outputs.
        unread = {name for key, name in names.items() if key not in read}
        of_weights = [frozenset(names[key] for key in found & names.keys()) for found in used]
        of_weights[-1] |= unread
        of_caches = [tuple(sorted({numbers[key] for key in found & numbers.keys()})) for found in used]
        return tuple(of_weights), tuple(of_caches)


def _local_cache(whole: MetaTensor, heads: Ranges) -> MetaTensor:
    (start, stop), shape = heads[0], whole.shape
    return MetaTensor((*shape[:2], stop - start, *shape[3:]), whole.dtype)


def weight_dtype(param: Param, dtypes: Mapping[str, Any]) -> Any:
    """Return the number format in which a weight is packed."""
    return F32 if len(param.shape) == 1 or param.plain else dtypes.get(param.name, F32)


def _dim_of(param: Param) -> int:
    """Return the dimension in which a weight is sharded: the rows or columns of its matrices."""
    if isinstance(param.split, Columns):
        return len(param.shape) - 1
    return 1 if param.is_experts and len(param.shape) == 3 else 0


def _unit(param: Param) -> int:
    assert isinstance(param.split, Rows | Columns)
    return param.split.unit


def stage_of_layer(parallel: ParallelConfig, num_layers: int, name: str) -> int | None:
    """Return the stage of a weight's layer; None for a weight of no layer."""
    first, number, *_ = [*name.split("."), ""]
    if first != "layers" or not number.isdecimal():
        return None
    for stage, (start, end) in enumerate(parallel.layer_ranges(num_layers)):
        if start <= int(number) < end:
            return stage
    return None


def _layer_of(name: str) -> str:
    """Return the layer of a weight: "layers.3" of "layers.3.attn_q.weight"."""
    return ".".join(name.split(".")[:2])


def place_weights(
    plan: ShardingPlan, sharder: Sharder, weights: Mapping[str, Any], tables: Collection[str]
) -> dict[str, Any]:
    """Return a rank's weights with their placements; those of `tables` with their numbers."""
    sharded = dict(weights)
    for name, sharding in plan.weights.items():
        if name in weights:
            sharded[name] = Sharded(sharder, weights[name], sharding.dim, sharding.ranges, is_constant=True)
    for name in tables:
        if name in weights:
            sharded[name] = Table(sharder, weights[name], weights[name].numpy)
    return sharded


def place_caches(plan: ShardingPlan, sharder: Sharder, caches: Sequence[Any]) -> list[Any]:
    """Return a rank's caches with their placements."""
    return [
        Sharded(sharder, cache, 2, heads, is_constant=True) if heads else cache
        for cache, heads in zip(caches, plan.cache_heads, strict=True)
    ]


def local_outputs(sharder: Sharder, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's outputs: its own logits, and whole values of all others."""
    return {
        name: value.local if name == "logits" and isinstance(value, Sharded) else sharder.whole(value)
        for name, value in outputs.items()
    }
