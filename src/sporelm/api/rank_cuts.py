"""The parts of a divided model that each rank has, as a worker group needs them: of pages, states and logits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.ranks.cache_cuts import CacheCut, RankCuts
from sporelm.engine.ranks.worker_group import LogitColumns
from sporelm.models.blocks.block_memory import State
from sporelm.models.weight_cuts import ModelCuts

HEAD_AXIS = 2  # of canonical pages: [pages, 2, kv_heads, PAGE, head_dim]


class GroupCuts(NamedTuple):
    """See `GroupMembers`."""

    pages: list[RankCuts]
    states: list[RankCuts]
    logits: list[LogitColumns]


def cut_group(cuts: ModelCuts, memory: Sequence[Any], vocab: int, parallel: ParallelConfig) -> GroupCuts:
    """Return the parts of all ranks. `memory` is that of the whole model, `vocab` the columns of its logits."""
    page_numbers, state_numbers = number_caches(memory)
    pages: list[RankCuts] = []
    states: list[RankCuts] = []
    for rank in range(parallel.size):
        tp_rank = parallel.tp_rank(rank)
        of_pages: list[CacheCut] = []
        of_states: list[CacheCut] = []
        for index in cuts.stage_caches[parallel.stage(rank)]:
            if index in state_numbers:
                of_states += [CacheCut(number) for number in state_numbers[index]]
                continue
            heads = cuts.cache_heads[index]
            number = page_numbers[index]
            of_pages.append(CacheCut(number, HEAD_AXIS, *heads[tp_rank]) if heads else CacheCut(number))
        pages.append(of_pages)
        states.append(of_states)
    first = (parallel.pp - 1) * parallel.tp  # rank of the last stage, which has the logits
    if cuts.logits:
        logits = [LogitColumns(first + tp_rank, *columns) for tp_rank, columns in enumerate(cuts.logits)]
    else:
        logits = [LogitColumns(first, 0, vocab)] if first else []
    return GroupCuts(pages, states, logits)


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
