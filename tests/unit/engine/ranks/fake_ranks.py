"""Ranks with the fake model, in threads or behind connections, and a launcher that starts them again."""

import socket
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from sporelm.backends.context import Context
from sporelm.engine import Engine, EngineConfig, ModelOutput, Step
from sporelm.engine.ranks.cache_shards import RankShards, full_shards
from sporelm.engine.ranks.message_handler import OpenedRank
from sporelm.engine.ranks.messages import OpenRank, RankReady
from sporelm.engine.ranks.rank import Envelope, ProcessRank, ThreadRank
from sporelm.engine.ranks.rank_server import RankServer
from sporelm.engine.ranks.transport import Connection
from sporelm.engine.ranks.worker_group import GroupMembers, LogitColumns, WorkerGroup
from sporelm.errors import RankLost
from unit.engine.fake import FakeRunner, limits

KEYS = b"a" * 32, b"b" * 32


class FakeWorker(FakeRunner):
    """A worker with some columns of the fake model's logits."""

    def __init__(self, chosen: EngineConfig, columns: tuple[int, int] | None = None) -> None:
        super().__init__(chosen)
        self.columns = columns
        self.device = SimpleNamespace(context=Context("fake"), traits=SimpleNamespace(is_async=False))
        self.runner = SimpleNamespace(image_columns=0)
        self.on_run: Callable[[Step], None] = lambda step: None
        self.is_closed = False
        self.lora: Any = None
        self.built: list[Any] = []

    def run(self, step: Step) -> ModelOutput:
        self.on_run(step)
        output = super().run(step)
        if self.columns is None:
            return output
        return ModelOutput(output.argmax, output.logits[:, slice(*self.columns)])

    def build_lora_runtime(self, adapters: Any) -> Any:
        self.built.append(adapters)
        return SimpleNamespace(adapters=adapters)

    def embed(self, step: Step) -> Any:
        return super().run(step).logits

    def set_lora_runtime(self, lora_runtime: Any) -> None:
        self.lora = lora_runtime

    def discard_lora_runtime(self, lora_runtime: Any) -> None:
        self.built.remove(lora_runtime.adapters)

    def close(self) -> None:
        self.is_closed = True


class Launcher:
    """Starts groups of fake ranks: rank 0, then one for each of `kinds`, "thread" or "remote"."""

    def __init__(
        self, kinds: Sequence[str], chosen: EngineConfig | None = None, columns: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.kinds, self.limits, self.columns = kinds, chosen or limits(), columns
        self.starts: list[list[FakeWorker]] = []  # of all ranks, for each start
        self.ranks: list[Any] = []
        self.servers: list[threading.Thread] = []
        self.num_failures = 0  # starts that fail from now on
        self.aborted = threading.Event()
        self.rank_aborted: list[threading.Event] = []  # of the other ranks, each by itself
        self.on_start: Callable[[list[FakeWorker]], None] = lambda workers: None
        self.ends: list[socket.socket] = []
        self.micro_batches = 1
        self.token_rank = 0
        self.page_shards: list[RankShards] = []  # of all ranks; []: each has all
        self.num_unwoken = 0  # waits that nothing has ended

    def start(self) -> GroupMembers:
        if self.num_failures:
            self.num_failures -= 1
            raise RankLost("rank 1: its process has ended at its start")
        columns = [*self.columns] or [None] * (1 + len(self.kinds))
        workers = [FakeWorker(self.limits, each) for each in columns]
        self.starts.append(workers)
        self.aborted = aborted = threading.Event()
        self.rank_aborted = [threading.Event() for _ in self.kinds]
        self.ranks = [
            self._thread(number, worker) if kind == "thread" else self._remote(number, worker)
            for number, (kind, worker) in enumerate(zip(self.kinds, workers[1:], strict=True), 1)
        ]
        self.on_start(workers)
        shards = self.page_shards or [full_shards(1)] * len(workers)
        return GroupMembers(
            workers[0],  # type: ignore[arg-type]
            self.ranks,
            aborted.set,
            lambda: None,
            shards,
            [full_shards(0)] * len(workers),
            [LogitColumns(rank, *each) for rank, each in enumerate(self.columns)],
            token_rank=self.token_rank,
            micro_batches=self.micro_batches,
        )

    def group(self) -> WorkerGroup:
        return WorkerGroup(self.start, self.limits)

    def engine(self) -> Engine:
        return Engine(self.group(), self.limits)

    def _make_rank(self, number: int, worker: FakeWorker) -> OpenedRank:
        ready = RankReady("model", "plan")
        return OpenedRank(worker, ready, self.rank_aborted[number - 1].set, worker.close)  # type: ignore[arg-type]

    def _thread(self, number: int, worker: FakeWorker) -> ThreadRank:
        rank = ThreadRank(f"rank {number}", lambda: self._make_rank(number, worker))
        rank.wait_until_open()
        return rank

    def _remote(self, number: int, worker: FakeWorker) -> ProcessRank:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        opener: Any = SimpleNamespace(open=lambda options, addresses, stage: self._make_rank(number, worker))
        server = RankServer(Connection(theirs, *KEYS, "rank 0"), opener, lambda: None)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        self.servers.append(thread)
        rank = ProcessRank(f"rank {number}", Connection(ours, *reversed(KEYS), f"process {number}"))
        assert isinstance(rank.send(Envelope(OpenRank(b""))).result(5), RankReady)
        return rank

    def wait(self, aborted: threading.Event) -> None:
        """Wait in a collective for a rank that does not come."""
        self.num_unwoken += not aborted.wait(8)
        raise RankLost("group: aborted")

    def cut_off(self) -> None:
        """End the last remote rank's connection, as the death of its process does."""
        self.ends[-1].shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self.servers:
            thread.join(5)
            assert not thread.is_alive()
