"""Split a traced graph into the stages of a pipeline: each stage has the calls of some layers.

A call belongs to the stage of its layer, or to the last stage of its arguments. Values that later stages need are sent
by the stage that has them. A cache may be read in a later stage than the one that fills it (layers that share keys and
values): the calls that write to it are then made in both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.ops import Call, Graph, Value, receive, send
from sporelm.ops.collectives import RankGroup
from sporelm.ops.op import leaves
from sporelm.tensor.dtype import F32, DType

StageOf = Callable[[Any], int | None]  # the stage of a constant; None: it belongs to no layer


@dataclass(frozen=True)
class StageCalls:
    """The stages of a graph's calls.

    stages   for each call the stages that make it, in order
    sources  the stage that sends a value to others, by the value's id
    """

    stages: Sequence[tuple[int, ...]]
    sources: Mapping[int, int]

    def constants(self, graph: Graph, stage: int) -> list[Any]:
        """Return the constants that the calls of a stage use, each once."""
        found: dict[int, Any] = {}
        for call, stages in zip(graph.calls, self.stages, strict=True):
            if stage in stages:
                found |= {id(value): value for value in leaves(call.args) if not isinstance(value, Value)}
        return list(found.values())


def assign_stages(graph: Graph, stage_of: StageOf, is_cheap: Callable[[Any], bool]) -> StageCalls:
    """Return the stages of a graph's calls.

    stage_of   the stage of a constant that belongs to a layer
    is_cheap   whether a constant is on every rank anyway: calls on such constants and inputs alone are repeated
    """
    home: dict[int, int] = {}  # the stage of each value; inputs are everywhere
    repeated: set[int] = set()  # values that follow from inputs and cheap constants
    first: list[int] = []
    for call in graph.calls:
        constants = [value for value in leaves(call.args) if not isinstance(value, Value)]
        stage = max([home.get(id(value), 0) for value in call.values()], default=0)
        stage = max([stage, *(found for value in constants if (found := stage_of(value)) is not None)])
        is_free = not call.op.updates and all(map(is_cheap, constants))
        if is_free and all(id(value) in repeated or id(value) not in home for value in call.values()):
            repeated |= {id(value) for value in call.results}
        home |= {id(value): stage for value in call.results}
        first.append(stage)
    wanted = [{stage} for stage in first]
    readers: dict[int, set[int]] = {}  # the stages that read a cache, by its id
    for call, stage in zip(graph.calls, first, strict=True):
        for value in call.updated() if call.op.updates else []:
            readers.setdefault(id(value), set()).add(stage)
    for call, stage in zip(graph.calls, first, strict=True):
        for value in leaves(call.args):
            if id(value) in readers:
                readers[id(value)].add(stage)
    for position, call in enumerate(graph.calls):
        if call.op.updates and not call.results:
            wanted[position] |= {stage for value in call.updated() for stage in readers[id(value)]}
    makers = {id(value): position for position, call in enumerate(graph.calls) for value in call.results}
    for position in range(len(graph.calls) - 1, -1, -1):  # users before makers
        for value in graph.calls[position].values():
            if id(value) in repeated:
                wanted[makers[id(value)]] |= wanted[position]
    sources = {key: stage for key, stage in home.items() if key not in repeated}
    return StageCalls([tuple(sorted(each)) for each in wanted], sources)


def extract_stage(
    graph: Graph, calls: StageCalls, stage: int, num_stages: int, group: RankGroup, rank_of: Callable[[int], int]
) -> Graph:
    """Return the graph of one stage; the last one has the outputs.

    group, rank_of   the ranks that send and receive, and the one of another stage among them

    Raises UnsupportedModel if a value that is not rows of numbers would have to be sent.
    """
    part = Graph(dict(graph.inputs), [], dict(graph.outputs) if stage == num_stages - 1 else {})
    needed = _needed_values(graph, calls, num_stages)
    for value in _values_in_order(graph):
        source = calls.sources.get(id(value))
        if source is not None and source != stage and stage in needed.get(id(value), ()):
            part.calls.append(_receive(graph, value, group, rank_of(source)))
    for call, stages in zip(graph.calls, calls.stages, strict=True):
        if stage not in stages:
            continue
        part.calls.append(call)
        for value in call.results:
            if calls.sources.get(id(value)) != stage:
                continue
            for target in sorted(needed.get(id(value), set()) - {stage}):
                part.calls.append(Call(send, (value,), {"group": group, "target": rank_of(target)}, ()))
    return part.check()


def _needed_values(graph: Graph, calls: StageCalls, num_stages: int) -> dict[int, set[int]]:
    """Return the stages that use each value, by its id."""
    needed: dict[int, set[int]] = {}
    for call, stages in zip(graph.calls, calls.stages, strict=True):
        for value in call.values():
            needed.setdefault(id(value), set()).update(stages)
    for value in graph.outputs.values():
        needed.setdefault(id(value), set()).add(num_stages - 1)
    return needed


def _values_in_order(graph: Graph) -> list[Value]:
    return [value for call in graph.calls for value in call.results]


def _receive(graph: Graph, value: Value, group: RankGroup, source: int) -> Call:
    """Return the call that defines a value of another stage. Its rows are counted by an input with as many."""
    row_shape, dtype = value.shape[1:], value.dtype
    is_sent = isinstance(dtype, DType) and all(isinstance(extent, int) for extent in row_shape)
    like = next((each for each in graph.inputs.values() if each.shape and each.shape[0] == value.shape[0]), None)
    if not is_sent or like is None:
        raise UnsupportedModel(f"a value {value.spec} would pass from one stage to another: only rows of numbers can")
    options = {"group": group, "source": source, "row_shape": row_shape} | ({} if dtype is F32 else {"dtype": dtype})
    return Call(receive, (like,), options, (value,))
