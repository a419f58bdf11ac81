"""A model as one rank runs it: its cut of every weight and cache, and its stage of the layers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.backends.protocol import Backend
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.placement import Sharder
from sporelm.distributed.sharding_rules import RULES
from sporelm.distributed.stage_cut import StageCalls, assign_stages, cut_stage
from sporelm.models.inputs import StepInputs
from sporelm.models.placeholder import Placeholder, placeholder_caches
from sporelm.models.weight_cuts import (
    ModelCuts,
    RankWeights,
    local_outputs,
    place_caches,
    place_weights,
    plan_cuts,
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
    """

    parallel: ParallelConfig
    rank: int
    group: RankGroup
    world: RankGroup | None = None


class PlacedModel:
    """A decoder with the weights and caches of one rank. It has all other attributes of the decoder."""

    def __init__(self, model: Any, dtypes: Mapping[str, Any], place: RankPlace, backend: Backend) -> None:
        """Plan the cuts of the model.

        dtypes   the number formats in which matrices are packed, by name

        Raises UnsupportedModel if the model cannot be divided, RequestError if its layers do not fit the stages.
        """
        self.model, self.rank_place, self.parallel = model, place, place.parallel
        every = model.params()
        self.cuts: ModelCuts = plan_cuts(model, every, dtypes, self.parallel)
        self.stage, self.tp_rank = self.parallel.stage(place.rank), self.parallel.tp_rank(place.rank)
        self.sharder = Sharder(place.group, RULES, backend.tensor)
        self._dtypes = {each.name: weight_dtype(each, dtypes) for each in every}
        self._params = {each.name: each for each in every}
        self._stage_of: dict[int, int] = {}  # of the constants of layers, by their ids
        self._local_ids: set[int] = set()  # ids of weights and caches

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
        return RankWeights(self.cuts, self.stage, self.tp_rank)

    def memory(self) -> list[Any]:
        """Return the memory of the rank's layers, with its KV heads."""
        whole = self.cuts.local_memory(self.model.memory(), self.tp_rank)
        return [whole[index] for index in self.cuts.stage_caches[self.stage]]

    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of the decoder's `forward`, of this rank: the logits of its tokens."""
        return self._run("forward", step, weights, caches)

    def embed(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs of the decoder's `embed`."""
        return self._run("embed", step, weights, caches)

    def _run(self, name: str, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]:
        absent = {
            param.name: Placeholder(self.cuts.local_shape(param, self.tp_rank), self._dtypes[param.name])
            for param in self._params.values()
            if param.name not in weights
        }
        given = {**absent, **weights}
        every = self._all_caches(caches)
        self._note_stages(given, every)
        tables = [name for name in weights if name not in self._params and is_table(weights[name])]
        placed = place_weights(self.cuts, self.sharder, given, tables)
        outputs = getattr(self.model, name)(step, placed, place_caches(self.cuts, self.sharder, every))
        return local_outputs(self.sharder, outputs)

    def _all_caches(self, caches: Sequence[Any]) -> list[Any]:
        """Return the caches of all layers: those of other stages as placeholders."""
        found = placeholder_caches(self.cuts.local_memory(self.model.memory(), self.tp_rank))
        for index, cache in zip(self.cuts.stage_caches[self.stage], caches, strict=True):
            found[index] = cache
        return found

    def _note_stages(self, weights: Mapping[str, Any], caches: Sequence[Any]) -> None:
        for name in self._params:
            if name in weights:
                self._local_ids.add(id(weights[name]))
                layer = self.cuts.layer_stage(name)
                if layer is not None:
                    self._stage_of[id(weights[name])] = layer
        for cache in caches:
            self._local_ids |= {id(each) for each in (cache if isinstance(cache, tuple) else (cache,))}

    def local_graph(self, graph: Graph) -> Graph:
        """Return the rank's stage of a graph that was traced by `forward` or `embed`."""
        if self.parallel.pp == 1:
            return graph
        assert self.rank_place.world is not None
        calls: StageCalls = assign_stages(
            graph, lambda value: self._stage_of.get(id(value)), lambda value: id(value) not in self._local_ids
        )
        tp = self.parallel.tp

        def rank_of(stage: int) -> int:
            return stage * tp + self.tp_rank

        return cut_stage(graph, calls, self.stage, self.parallel.pp, self.rank_place.world, rank_of)


def is_table(value: Any) -> bool:
    """Return whether a value beside the parameters is a table of numbers: neither a column order nor of an adapter."""
    return isinstance(value, Tensor) and not isinstance(value.storage, tuple) and isinstance(value.dtype, DType)
