"""Decides how a model's weights, caches and logits are cut for the ranks of a stage.

The model is traced twice without weights. The first trace tells which ops read each weight; the second one, with the
sharding rules, tells which caches are cut. A weight that no rule can cut is copied to every rank (ADR 0056).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks.block_memory import Paged, State
from sporelm.models.inputs import Forward, compute, input_specs
from sporelm.models.params import Columns, Param, Rows
from sporelm.ops import Graph, Op, Spec
from sporelm.ops.op import leaves
from sporelm.ops.paged_attention import PAGE, page_shape
from sporelm.tensor.dtype import F32, ElementType, dtype_of

PLANNED_TOKENS, PLANNED_PAGES = 4, 2  # of the steps that are traced
EMBEDDING, LINEAR, EXPERTS, HEADS = (op.name for op in (ops.embedding, ops.linear, ops.linear_experts, ops.linear_heads))
NORMS = {ops.rms_norm.name, ops.layer_norm.name}


@dataclass(frozen=True)
class Cut:
    """The dimension in which a weight is cut, and the range of each rank."""

    dim: int
    ranges: Ranges

    def shape(self, whole: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part."""
        start, stop = self.ranges[rank]
        return (*whole[: self.dim], stop - start, *whole[self.dim + 1 :])


@dataclass(frozen=True)
class ModelCuts:
    """The cuts of one model for the ranks of a stage.

    parallel     the ranks
    weights      the cut of each weight that is not copied, by name
    cache_heads  for each memory of the model the KV heads of each rank; (): all of them
    logits       the tokens whose scores each rank has; (): all of them
    """

    parallel: ParallelConfig
    weights: Mapping[str, Cut] = field(default_factory=dict)
    cache_heads: tuple[Ranges, ...] = ()
    logits: Ranges = ()

    def local_memory(self, memory: Sequence[Any], tp_rank: int) -> list[Any]:
        """Return what the caches of a rank keep: `memory` with the rank's KV heads."""
        found = []
        for each, heads in zip(memory, self.cache_heads, strict=True):
            found.append(replace(each, kv_heads=heads[tp_rank][1] - heads[tp_rank][0]) if heads else each)
        return found

    def local_shape(self, param: Param, tp_rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's part of a weight."""
        cut = self.weights.get(param.name)
        return cut.shape(param.shape, tp_rank) if cut else param.shape


class Placeholder:
    """A weight or a cache without values, on a device that computes nothing."""

    graph = None

    def __init__(self, shape: Sequence[Any], dtype: ElementType) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, PLACEHOLDER_DEVICE

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)


class PlaceholderDevice:
    """A device whose ops return placeholders."""

    name = "placeholder"

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        results = tuple(Placeholder(spec.shape, spec.dtype) for spec in op.results(args, options))
        return results[0] if len(results) == 1 else results or None


PLACEHOLDER_DEVICE = PlaceholderDevice()


class PlannedGroup(NamedTuple):
    """A rank of a group that is only planned: it cannot exchange anything."""

    rank: int
    size: int

    def gather(self, array: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
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


def plan_cuts(
    model: Any, params: Sequence[Param], dtypes: Mapping[str, Any], parallel: ParallelConfig, context: int = PAGE
) -> ModelCuts:
    """Return the cuts of a decoder for the ranks of a stage.

    dtypes   the number format in which each matrix is packed, by name; a weight without one is float32

    Raises UnsupportedModel if the sharding rules cannot run the model in any way.
    """
    if parallel.tp == 1:
        return ModelCuts(parallel, {}, ((),) * len(model.memory()))
    planner = CutPlanner(model, params, dtypes, parallel, context)
    reason: UnsupportedModel | None = None
    expert_cuts = [ExpertCut.WHOLE, ExpertCut.WHOLE_DECLARED, ExpertCut.NONE]
    for expert_cut in expert_cuts if parallel.expert_parallel else ExpertCut:
        try:
            return planner.plan(expert_cut)
        except UnsupportedModel as error:
            reason = error
    raise UnsupportedModel(f"{model.config.name} cannot be divided for {parallel.tp} ranks: {reason}")


class ExpertCut(Enum):
    """How the matrices of experts are divided, in the order in which a planner tries it."""

    MATRICES = "each by rows or columns"
    MATRICES_DECLARED = "those whose parameter says how"
    WHOLE = "whole experts"
    WHOLE_DECLARED = "whole experts of those whose parameter says that it may be cut"
    NONE = "not at all"

    @property
    def is_for_declared(self) -> bool:
        """Whether experts' matrices of parameters without a cut are copied."""
        return self in (ExpertCut.MATRICES_DECLARED, ExpertCut.WHOLE_DECLARED)

    @property
    def is_whole(self) -> bool:
        return self in (ExpertCut.WHOLE, ExpertCut.WHOLE_DECLARED)


class CutPlanner:
    """Plans the cuts of one model."""

    def __init__(
        self, model: Any, params: Sequence[Param], dtypes: Mapping[str, Any], parallel: ParallelConfig, context: int
    ) -> None:
        self.model, self.params, self.parallel = model, params, parallel
        self.dtypes = {each.name: _dtype_of(each, dtypes) for each in params}
        self.tables = model.tables(max(context, PLANNED_PAGES * PAGE))
        self.specs = input_specs(PLANNED_TOKENS, PLANNED_TOKENS, PLANNED_TOKENS, PLANNED_PAGES)
        self.uses, self.biases = self._find_uses()

    def plan(self, expert_cut: ExpertCut) -> ModelCuts:
        """Return the cuts. Raises UnsupportedModel if a rule is missing for experts that are divided in this way."""
        cuts = dict(self._choose_cuts(expert_cut))
        for weight, bias in self.biases.items():
            cuts.pop(bias, None)
            if weight not in cuts:
                continue
            dim, ranges = cuts[weight].dim, cuts[weight].ranges
            shape = next(each.shape for each in self.params if each.name == bias)
            if len(shape) == 2 and dim < 2:  # of experts: [experts, out]
                cuts[bias] = Cut(dim, ranges)
            elif len(shape) == 1 and dim == 0:
                cuts[bias] = Cut(0, ranges)
        caches, logits = self._trace_rules(cuts)
        return ModelCuts(self.parallel, cuts, caches, logits)

    def _memory_placeholders(self) -> list[Any]:
        found: list[Any] = []
        for each in self.model.memory():
            if isinstance(each, State):
                found.append(tuple(Placeholder((PLANNED_TOKENS, *shape), F32) for shape in each.shapes))
            else:
                found.append(Placeholder((PLANNED_PAGES, *page_shape(each.position_shape)), F32))
        return found

    def _trace(self, weights: Mapping[str, Any], caches: Sequence[Any], forward: Forward) -> tuple[Graph, dict[str, Any]]:
        graph = Graph()
        values = {name: graph.input(name, spec) for name, spec in self.specs.items()}
        return graph, compute(forward, values, weights, caches)

    def _find_uses(self) -> tuple[dict[str, WeightUse], dict[str, str]]:
        """Return how each weight is read, and the bias of each matrix that has one."""
        weights = {each.name: Placeholder(each.shape, self.dtypes[each.name]) for each in self.params}
        tables = {name: Placeholder(table.shape, dtype_of(table)) for name, table in self.tables.items()}
        graph, _ = self._trace({**weights, **tables}, self._memory_placeholders(), self.model.forward)
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

    def _choose_cuts(self, expert_cut: ExpertCut) -> Iterator[tuple[str, Cut]]:
        groups: dict[tuple[str, int], list[Param]] = {}
        for param in self.params:
            use = self.uses.get(param.name)
            if use is None or param.name in self.biases.values():
                continue
            if use.is_only(EXPERTS):
                if expert_cut is ExpertCut.NONE or (expert_cut.is_for_declared and param.split is None):
                    continue
                if expert_cut.is_whole:
                    yield from self._cut_dim(param, 0)
                    continue
            if param.split is not None and self._is_cuttable(param, use):
                units = param.shape[_dim_of(param)] // param.split.unit
                groups.setdefault((_layer_of(param.name), units), []).append(param)
            elif use.is_only(LINEAR) or (use.is_only(LINEAR, EMBEDDING) and not self._fills):
                yield from self._cut_dim(param, 0)
            elif use.is_only(EXPERTS):
                yield from self._cut_dim(param, 1)
        for (_, units), members in groups.items():
            yield from self._cut_group(units, members)

    @property
    def _fills(self) -> bool:
        return bool(getattr(getattr(self.model, "embedding", None), "fills", False))

    def _is_cuttable(self, param: Param, use: WeightUse) -> bool:
        names = {name for name, _ in use.readers}
        if len(param.shape) == 1:
            return names <= {ops.attention.name}
        return names <= {LINEAR} or names <= {EXPERTS} or names <= {HEADS} or names <= NORMS

    def _cut_dim(self, param: Param, dim: int) -> Iterator[tuple[str, Cut]]:
        block = self._block(param) if dim == len(param.shape) - 1 else 1
        ranges = divide(param.shape[dim], self.parallel.tp_shares, block)
        if ranges is not None:
            yield param.name, Cut(dim, ranges)

    def _block(self, param: Param) -> int:
        """Return the columns that cannot be separated: a block of the number format, or a group of activations."""
        dtype = self.dtypes[param.name]
        _, _, group = getattr(dtype, "activation", "").partition("/")
        return lcm(getattr(dtype, "values", 1), int(group or 1))

    def _cut_group(self, units: int, members: Sequence[Param]) -> Iterator[tuple[str, Cut]]:
        """Yield the cuts of the weights of a layer that have as many units: all at the same ones, if possible."""
        shares = self.parallel.tp_shares
        columns = [each for each in members if isinstance(each.split, Columns)]
        step = lcm(1, *(self._block(each) // gcd(_unit(each), self._block(each)) for each in columns))
        common = divide(units, shares, step)
        if common is not None:
            for each in members:
                yield each.name, Cut(_dim_of(each), scale_ranges(common, _unit(each)))
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
                yield each.name, Cut(_dim_of(each), ranges)
            elif len(each.shape) == 2 and self.uses[each.name].is_only(LINEAR):
                yield from self._cut_dim(each, _dim_of(each))

    def _trace_rules(self, cuts: Mapping[str, Cut]) -> tuple[tuple[Ranges, ...], Ranges]:
        """Trace the model with the rules. Return the KV heads of each memory, and the range of logits, of each rank."""
        def constant(array: NDArray[Any]) -> Placeholder:
            return Placeholder(array.shape, dtype_of(array))

        sharder = Sharder(PlannedGroup(0, self.parallel.tp), RULES, constant)
        weights: dict[str, Any] = {}
        for each in self.params:
            cut = cuts.get(each.name)
            shape = cut.shape(each.shape, 0) if cut else each.shape
            local = Placeholder(shape, self.dtypes[each.name])
            weights[each.name] = Sharded(sharder, local, cut.dim, cut.ranges, is_constant=True) if cut else local
        for name, table in self.tables.items():
            weights[name] = Table(sharder, Placeholder(table.shape, dtype_of(table)), table)
        whole = self._memory_placeholders()
        caches = [
            UndecidedCache(sharder, each, partial(_local_cache, each)) if isinstance(memory, Paged) else each
            for memory, each in zip(self.model.memory(), whole, strict=True)
        ]
        _, outputs = self._trace(weights, caches, self.model.forward)
        logits = outputs["logits"]
        heads = tuple((cache.heads or ()) if isinstance(cache, UndecidedCache) else () for cache in caches)
        return heads, logits.ranges if isinstance(logits, Sharded) else ()


def _local_cache(whole: Placeholder, heads: Ranges) -> Placeholder:
    (start, stop), shape = heads[0], whole.shape
    return Placeholder((*shape[:2], stop - start, *shape[3:]), whole.dtype)


def _dtype_of(param: Param, dtypes: Mapping[str, Any]) -> Any:
    return F32 if len(param.shape) == 1 or param.plain else dtypes.get(param.name, F32)


def _dim_of(param: Param) -> int:
    """Return the dimension in which a weight is cut: the rows or columns of its matrices."""
    if isinstance(param.split, Columns):
        return len(param.shape) - 1
    return 1 if param.is_experts and len(param.shape) == 3 else 0


def _unit(param: Param) -> int:
    assert isinstance(param.split, Rows | Columns)
    return param.split.unit


def _layer_of(name: str) -> str:
    """Return the layer of a weight: "layers.3" of "layers.3.attn_q.weight"."""
    return ".".join(name.split(".")[:2])


def place_weights(
    cuts: ModelCuts, sharder: Sharder, weights: Mapping[str, Any], tables: Collection[str]
) -> dict[str, Any]:
    """Return a rank's weights with their placements; those of `tables` with their numbers."""
    placed = dict(weights)
    for name, cut in cuts.weights.items():
        if name in weights:
            placed[name] = Sharded(sharder, weights[name], cut.dim, cut.ranges, is_constant=True)
    for name in tables:
        if name in weights:
            placed[name] = Table(sharder, weights[name], weights[name].numpy())
    return placed


def place_caches(cuts: ModelCuts, sharder: Sharder, caches: Sequence[Any]) -> list[Any]:
    """Return a rank's caches with their placements."""
    return [
        Sharded(sharder, cache, 2, heads, is_constant=True) if heads else cache
        for cache, heads in zip(caches, cuts.cache_heads, strict=True)
    ]


def local_outputs(sharder: Sharder, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's outputs: its own logits, and whole values of all others."""
    return {
        name: value.local if name == "logits" and isinstance(value, Sharded) else sharder.whole(value)
        for name, value in outputs.items()
    }

