"""A model as one rank runs it: its shards of the weights and caches, and its stage of the layers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.backends.protocol import Backend
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.placement import Sharder
from sporelm.distributed.sharding_rules import RULES
from sporelm.distributed.stage_split import StageCalls, assign_stages, extract_stage
from sporelm.models.inputs import StepInputs
from sporelm.models.meta_tensor import MetaTensor, create_meta_caches
from sporelm.models.sharding_plan import (
    RankWeights,
    ShardingPlan,
    local_outputs,
    place_caches,
    place_weights,
    plan_sharding,
    weight_dtype,
)
from sporelm.ops import Graph
from sporelm.ops.collectives import RankGroup
from sporelm.tensor.dtype import DType
from sporelm.tensor.tensor import Tensor


class RankPlace(NamedTuple):
    """The place of one rank among those of a model.

    rank    its number
    group   the ranks of its stage
    world   the ranks of all stages, which send values to each other; None if there is one stage
    plan    how the model is divided, where that is known; None: it is planned again
    """

    parallel: ParallelConfig
    rank: int
    group: RankGroup
    world: RankGroup | None = None
    plan: ShardingPlan | None = None


class ShardedModel:
    """A decoder with the weights and caches of one rank. It has all other attributes of the decoder."""

    def __init__(self, model: Any, dtypes: Mapping[str, Any], place: RankPlace, backend: Backend) -> None:
        """Plan how the model is sharded, unless `place` has the plan.

        dtypes   the number formats in which matrices are packed, by name

        Raises UnsupportedModel if the model cannot be divided, RequestError if its layers do not fit the stages.
        """
        self.model, self.rank_place, self.parallel = model, place, place.parallel
        every = model.params()
        self.sharding_plan: ShardingPlan = place.plan or plan_sharding(model, every, dtypes, self.parallel)
        self.stage, self.tp_rank = self.parallel.stage(place.rank), self.parallel.tp_rank(place.rank)
        self.sharder = Sharder(place.group, RULES, backend.tensor)
        self._dtypes = {each.name: weight_dtype(each, dtypes) for each in every}
        self._params = {each.name: each for each in every}
        # Made once: an object that was freed could leave its id to another of a later trace.
        self._absent_weights = {
            each.name: MetaTensor(self.sharding_plan.local_shape(each, self.tp_rank), self._dtypes[each.name])
            for each in every
        }
        self._absent_caches = create_meta_caches(self.sharding_plan.local_memory(model.memory(), self.tp_rank))
        self._stages: dict[int, int] = {}  # of the weights of layers in the last trace, by their ids
        self._local_ids: set[int] = set()  # of all weights and caches in the last trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def share(self) -> tuple[int, int, int]:
        """The rank's part of the weights of its stage: (start, length, total)."""
        return self.parallel.share(self.rank_place.rank)

    @property
    def is_last_stage(self) -> bool:
        """Whether the rank has outputs."""
        return self.stage == self.parallel.pp - 1

    @property
    def rank_weights(self) -> RankWeights:
        """The weights that the rank has."""
        return RankWeights(self.sharding_plan, self.stage, self.tp_rank)

    def memory(self) -> list[Any]:
        """Return the memory of the rank's layers, with its KV heads."""
        whole = self.sharding_plan.local_memory(self.model.memory(), self.tp_rank)
        return [whole[index] for index in self.sharding_plan.stage_caches[self.stage]]

    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of the decoder's `forward`, of this rank: the logits of its tokens."""
        return self._run("forward", step, weights, caches)

    def embed(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of the decoder's `embed`."""
        return self._run("embed", step, weights, caches)

    def _run(self, name: str, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        given = {**self._absent_weights, **weights}
        every = self._all_caches(caches)
        self._stages, self._local_ids = self._find_stages(given, every)
        tables = [name for name in weights if name not in self._params and is_table(weights[name])]
        sharded = place_weights(self.sharding_plan, self.sharder, given, tables)
        outputs = getattr(self.model, name)(step, sharded, place_caches(self.sharding_plan, self.sharder, every))
        return local_outputs(self.sharder, outputs)

    def _all_caches(self, caches: Sequence[Any]) -> list[Any]:
        """Return the caches of all layers: without values for other stages."""
        every = list(self._absent_caches)
        for index, cache in zip(self.sharding_plan.stage_caches[self.stage], caches, strict=True):
            every[index] = cache
        return every

    def _find_stages(self, weights: Mapping[str, Any], caches: Sequence[Any]) -> tuple[dict[int, int], set[int]]:
        """Return the stages of the layers' weights, and the ids of all weights and caches, by the ids of this trace."""
        stages = {
            id(weights[name]): stage
            for name in self._params
            if (stage := self.sharding_plan.layer_stage(name)) is not None
        }
        local = {id(weights[name]) for name in self._params}
        for cache in caches:
            local |= {id(each) for each in (cache if isinstance(cache, tuple) else (cache,))}
        return stages, local

    def local_graph(self, graph: Graph) -> Graph:
        """Return the rank's stage of a graph that was traced by `forward` or `embed`."""
        if self.parallel.pp == 1:
            return graph
        assert self.rank_place.world is not None
        calls: StageCalls = assign_stages(
            graph, lambda value: self._stages.get(id(value)), lambda value: id(value) not in self._local_ids
        )
        tp = self.parallel.tp

        def rank_of(stage: int) -> int:
            return stage * tp + self.tp_rank

        return extract_stage(graph, calls, self.stage, self.parallel.pp, self.rank_place.world, rank_of)


def is_table(value: Any) -> bool:
    """Return whether a value beside the parameters is a table of numbers: neither a column order nor of an adapter."""
    return isinstance(value, Tensor) and not isinstance(value.storage, tuple) and isinstance(value.dtype, DType)
