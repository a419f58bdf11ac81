"""A model on several ranks of this process, each a `Worker` with a thread of its own."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from available import open_available
from sporelm.api.model_loader import ModelLoader
from sporelm.checkpoints import open_model
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.engine import EngineConfig, Worker
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RankLost
from sporelm.models.sharded_model import RankPlace
from sporelm.ops.canonical_pages import KV_TYPES

CONTEXT, PAGES = 256, (3, 1, 5, 2)
JOIN_SECONDS = 120.0


def prompt_steps(ids: Sequence[int]) -> Iterator[Step]:
    """A prompt in two chunks and one decoded token, with outputs at all rows."""
    half = len(ids) // 2
    for start, stop in ((0, half), (half, len(ids) - 1), (len(ids) - 1, len(ids))):
        part = list(ids[start:stop])
        yield Step([ScheduledSequence(0, part, start, PAGES, len(part), state_slot=1)], [])


class RankResults:
    """The results of all ranks: logits [rows, vocab] and tokens [rows] of the model, and bytes of weights."""

    def __init__(self, size: int) -> None:
        self.logits: list[list[np.ndarray]] = [[] for _ in range(size)]
        self.tokens: list[list[np.ndarray]] = [[] for _ in range(size)]
        self.nbytes = [0] * size
        self.columns: Any = ()

    def whole(self, parallel: ParallelConfig) -> tuple[np.ndarray, np.ndarray]:
        """The logits and tokens of the last stage."""
        last = [rank for rank in range(parallel.size) if parallel.stage(rank) == parallel.pp - 1]
        logits = np.concatenate(self.logits[last[0]])
        if self.columns:
            logits = np.empty((len(logits), max(stop for _, stop in self.columns)), np.float32)
            for rank, (start, stop) in zip(last, self.columns, strict=True):
                logits[:, start:stop] = np.concatenate(self.logits[rank])
        tokens = [np.concatenate(self.tokens[rank]) for rank in last]
        assert all(np.array_equal(each, tokens[0]) for each in tokens)
        return logits, tokens[0]


def run_ranks(
    path: Path,
    ids: Sequence[int],
    parallel: ParallelConfig,
    *,
    backend: str = "cpu",
    eager: bool = False,
    kv: str = "f32",
) -> RankResults:
    """Run a prompt on all ranks of a model at once; on one rank the model is whole."""
    results = RankResults(parallel.size)
    stages = [SharedMemoryGroup.create(parallel.tp, stride=0) for _ in range(parallel.pp)]
    world = SharedMemoryGroup.create(parallel.size, has_slots=False, stride=parallel.tp)
    errors: list[Exception] = []

    def run(rank: int) -> None:
        group = stages[parallel.stage(rank)][parallel.tp_rank(rank)]
        place = RankPlace(parallel, rank, group, world[rank]) if parallel.size > 1 else None
        device = open_available(backend, threads=1)
        source = open_model(path)
        try:
            loader = ModelLoader(source, device, kv, dequantize=False, place=place)
            loaded = loader.load_decoder(CONTEXT, 1, None)
            states = {"num_states": 4, "state_interval": 64} if loader.state_bytes else {}
            limits = EngineConfig(CONTEXT, CONTEXT, source.config.vocab, 512, 4, 8, **states)
            worker = Worker(loaded, device, limits=limits, kv=KV_TYPES[kv], eager=eager)
            for step in prompt_steps(ids):
                output = worker.run(step)
                results.logits[rank].append(np.array(output.logits))
                results.tokens[rank].append(np.array(output.argmax))
            worker.close()
            results.nbytes[rank] = loader.nbytes
            results.columns = loader.model.sharding_plan.logits if place else ()
        except Exception as error:
            errors.append(error)
            for each in (*world, *(member for stage in stages for member in stage)):
                each.abort()
        finally:
            source.close()
            device.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(parallel.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    errors.sort(key=lambda error: isinstance(error, RankLost))  # the first cause first
    if errors:
        raise errors[0]
    return results
