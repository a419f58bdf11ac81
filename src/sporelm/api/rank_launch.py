"""Starts the ranks of a model: threads, processes of this host, and workers of other hosts that join."""

import json
import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec

from sporelm import __version__
from sporelm.api.group_shards import find_group_shards
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_folder import RankFolder
from sporelm.api.rank_meeting import Entries, RankMeeting, merge_entries
from sporelm.api.rank_opening import (
    GroupSpec,
    JoinedGroups,
    RankOptions,
    join_groups,
    open_loader,
    open_rank,
    sign_rank,
)
from sporelm.backends.backend_registry import HOST_BACKENDS
from sporelm.backends.host_cores import usable_cores
from sporelm.backends.numa_nodes import (
    ThreadStarter,
    assign_cores,
    pinned_to,
    read_numa_nodes,
    share_threads,
    usable_core_numbers,
)
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints import open_model
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.engine import LoadedModel, Worker
from sporelm.engine.ranks.messages import (
    Close,
    Hello,
    MeetRanks,
    OpenRank,
    RankAddresses,
    RankReady,
    Reply,
    WaitAsSpare,
    decode_reply,
    encode,
)
from sporelm.engine.ranks.rank import Envelope, ProcessRank, Rank, ThreadRank
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.ranks.transport import (
    Connection,
    ConnectionLost,
    RankListener,
    new_token,
    read_or_create_token,
    server_tls,
)
from sporelm.engine.ranks.worker_group import GroupMembers, WorkerGroup
from sporelm.errors import BackendError, RankLost, SporeError, UnsupportedModel, safe_repr
from sporelm.models.sharded_model import ShardedModel
from sporelm.models.sharding_plan import ShardingPlan

log = logging.getLogger(__name__)

CONNECT_SECONDS = 60.0  # for a spawned process to start and connect
JOIN_SECONDS = 600.0  # for workers of other hosts
REJOIN_SECONDS = 60.0  # for them to come back after a loss
HELLO_SECONDS = 5.0
END_SECONDS = 0.5  # for a process to end, whose connection has ended
KILL_SECONDS = 5.0  # for a process to end by itself
POLL_SECONDS = 0.1
MEMORY_FOLDER = Path("/dev/shm")
WORLD = "world"  # the file of the group of all stages

# The child has the module search path of this process; it does not process site directories again.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sporelm.api.rank_process import main; main()"

# Opens rank 0's worker, each time in other groups. `progress` raises the error of a rank that cannot start.
OpenFirst = Callable[[RankOptions, JoinedGroups, Progress], Worker]
Replies = Mapping[int, "Future[Reply]"]  # by the number of the rank


class RankLauncher:
    """Starts the ranks of one model, again and again if they are lost. The caller closes it."""

    def __init__(
        self,
        options: RankOptions,
        parallel: ParallelOptions,
        open_first: OpenFirst,
        progress: Progress | None,
        plan: ShardingPlan | None = None,
    ) -> None:
        """Listen where workers of other hosts join, if there are any. Raises RequestError.

        options   of rank 0; those of the others follow from them
        progress  called with the phase of rank 0, then with those of the others, while they start
        plan      how the model is divided, for ranks that are threads of this process
        """
        self.options = options
        self.parallel = parallel
        self._open_first = open_first
        self._progress = progress
        self._plan = plan
        self._listener: RankListener | None = None
        self._local: RankListener | None = None  # of the processes of this host, while they start
        self._num_starts = 0
        if parallel.remote_ranks:
            self._listener = _listen(parallel)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.parallel.config.size

    def start(self) -> GroupMembers:
        """Start all ranks. Raises SporeError; then nothing stays behind."""
        self._num_starts += 1
        if self._listener is not None:
            self._listener.greet(None)
        with ExitStack() as cleanup:
            if self.parallel.rank_executor == "threads":
                members = self._start_threads(cleanup)
            else:
                members = self._start_processes(cleanup)
            cleanup.pop_all()
        if self._listener is not None:
            self._listener.greet(encode(WaitAsSpare()))
        return members

    def close(self) -> None:
        """Stop listening, and end the spare workers. The ranks are closed by their group."""
        if self._listener is None:
            return
        spares: list[Connection] = []
        while (spare := self._listener.accept(0)) is not None:
            spares.append(spare)
            with suppress(ConnectionLost):
                spare.send(encode(Close()))
        deadline = monotonic() + END_SECONDS
        for spare in spares:
            with suppress(SporeError):  # ConnectionLost, once it has ended
                while monotonic() < deadline:
                    spare.receive(POLL_SECONDS)
            spare.close()
        self._listener.close()

    # ---- threads

    def _start_threads(self, cleanup: ExitStack) -> GroupMembers:
        groups = self._create_groups()
        others: list[Rank] = []
        started: list[ThreadRank] = []
        for rank in range(1, self.size):
            open_worker = partial(open_rank, self._options_of(rank), ignore_phase, groups=groups[rank], plan=self._plan)
            started.append(ThreadRank(f"rank {rank}", open_worker))
            cleanup.callback(started[-1].close)
        cleanup.callback(_abort_all, groups)
        worker = self._open_first(self._options_of(0), groups[0], self._report)
        cleanup.callback(worker.close)
        for each in started:
            each.wait_until_open()
            others.append(each)
        return self._members(worker, others, partial(_abort_all, groups), groups[0].close)

    def _create_groups(self) -> list[JoinedGroups]:
        """Return the groups of each rank, for threads of this process."""
        config = self.parallel.config
        stages = [SharedMemoryGroup.create(config.tp, stride=0) for _ in range(config.pp)]
        world: Sequence[SharedMemoryGroup | None] = [None] * self.size
        if config.pp > 1:
            world = SharedMemoryGroup.create(self.size, has_slots=False, stride=config.tp)
        return [
            JoinedGroups(stages[config.stage(rank)][config.tp_rank(rank)], world[rank]) for rank in range(self.size)
        ]

    # ---- processes

    def _start_processes(self, cleanup: ExitStack) -> GroupMembers:
        rank_folder = RankFolder.create(MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir()))
        cleanup.callback(rank_folder.close)
        folder = rank_folder.path
        if not self._uses_torch:
            self._create_group_files(folder)
        processes = self._spawn(folder, cleanup)
        ranks = self._connect(processes, cleanup)
        first = self._options_of(0, folder)
        meeting = RankMeeting(first, first.group.stage) if self._uses_torch else None
        if meeting is not None:
            cleanup.callback(meeting.close)
        addresses = self._exchange_addresses(meeting, ranks, folder) if meeting is not None else {}
        pending = {
            number: rank.send(Envelope(OpenRank(self._options_of(number, folder).encode(), addresses)))
            for number, rank in ranks.items()
        }
        groups = meeting.finish(addresses) if meeting is not None else join_groups(first)
        cleanup.callback(groups.close)

        is_started = False  # from then on the group sees to losses

        def lose_all(reason: str) -> None:
            if is_started:
                return
            groups.abort()
            for rank in ranks.values():
                rank.lose(reason)

        for rank in ranks.values():
            rank.watch(lose_all)

        def report(phase: str, done: int, total: int) -> None:
            _raise_failures(pending)  # the others need not wait until rank 0 has loaded
            self._report(phase, done, total)

        with pinned_to(first.cores):
            worker = self._open_first(first, groups, report)
        cleanup.callback(worker.close)
        self._check_ready(ranks, self._wait_ready(ranks, pending), sign_rank(first, worker))

        def close() -> None:
            for number, process in processes.items():
                _end_process(process, at_once=not ranks[number].has_ended)
            groups.close()
            rank_folder.close()

        def abort() -> None:
            groups.abort()
            if self._listener is not None:  # a worker that joins now takes a rank
                self._listener.greet(None)

        members = self._members(worker, list(ranks.values()), abort, close)
        is_started = True
        return members

    @property
    def _uses_torch(self) -> bool:
        """Whether ranks are on other hosts."""
        return self._listener is not None and not self._listener.address.is_local

    def _exchange_addresses(self, meeting: RankMeeting, ranks: dict[int, ProcessRank], folder: Path) -> Entries:
        """Return the addresses of all ranks, which each of them needs to join its groups."""
        replies = [
            rank.send(Envelope(MeetRanks(self._options_of(number, folder).encode()))) for number, rank in ranks.items()
        ]
        entries = [meeting.open_addresses()]
        for reply in replies:
            found = reply.result()
            if not isinstance(found, RankAddresses):
                raise BackendError(f"ranks: {type(found).__name__} came in place of RankAddresses")
            entries.append(found.addresses)
        return merge_entries(entries)

    def _create_group_files(self, folder: Path) -> None:
        """Create the shared memory of all groups."""
        config = self.parallel.config
        try:
            for stage in range(0 if self.parallel.uses_nccl else config.pp):
                SharedMemoryGroup.create_file(folder / f"stage{stage}", config.tp, stride=0)
            if config.pp > 1:
                SharedMemoryGroup.create_file(folder / WORLD, self.size, has_slots=False, stride=config.tp)
        except OSError as reason:
            raise BackendError(
                f"shared memory: cannot create files in {folder} ({reason}). Free space there."
            ) from None

    def _spawn(self, folder: Path, cleanup: ExitStack) -> "dict[int, subprocess.Popen[bytes]]":
        """Start the processes of this host, which connect to a listener of their own."""
        processes: dict[int, subprocess.Popen[bytes]] = {}
        if self.parallel.num_local < 2:
            self._local = None
            return processes
        token = new_token()
        address = RankAddress.of_path(folder / "socket") if sys.platform != "win32" else RankAddress("127.0.0.1", 0)
        self._local = RankListener(address, token)
        cleanup.callback(self._local.close)
        for number in range(1, self.parallel.num_local):
            start = json.dumps({"address": str(self._local.address), "token": token, "rank": number})
            processes[number] = _start_process(start)
            cleanup.callback(_end_process, processes[number], at_once=True)
        return processes

    def _connect(self, processes: "dict[int, subprocess.Popen[bytes]]", cleanup: ExitStack) -> dict[int, ProcessRank]:
        """Return the ranks from 1 on in their order, once all have connected, in any order."""
        ranks: dict[int, ProcessRank] = {}
        try:
            deadline = monotonic() + CONNECT_SECONDS
            while len(ranks) < len(processes):
                assert self._local is not None
                connection = self._local.accept(POLL_SECONDS)
                if connection is not None:
                    hello = self._read_hello(connection)
                    if hello.rank not in processes or hello.rank in ranks:
                        connection.close()
                        continue
                    explain_end = partial(_explain_end, processes[hello.rank])
                    ranks[hello.rank] = ProcessRank(f"rank {hello.rank}", connection, explain_end)
                    cleanup.callback(_abandon, ranks[hello.rank])
                    continue
                _check_alive(processes, ranks)
                if monotonic() > deadline:
                    missing = ", ".join(str(number) for number in processes if number not in ranks)
                    raise RankLost(f"rank {missing}: did not connect within {CONNECT_SECONDS:g} seconds")
        finally:
            if self._local is not None:
                self._local.close()
        self._join_remote(ranks, cleanup)
        return dict(sorted(ranks.items()))

    def _join_remote(self, ranks: dict[int, ProcessRank], cleanup: ExitStack) -> None:
        """Wait for the workers of other hosts, which take the last ranks in the order in which they come."""
        numbers = range(self.parallel.num_local, self.size)
        seconds = JOIN_SECONDS if self._num_starts == 1 else REJOIN_SECONDS
        deadline = monotonic() + seconds
        if numbers:
            assert self._listener is not None
            log.warning(
                "waiting up to %g seconds for %d of: 'spore worker --join %s --token-file FILE'",
                *(seconds, len(numbers), self._listener.address),
            )
        while missing := [number for number in numbers if number not in ranks]:
            self._accept_remote(missing, ranks, cleanup, deadline, seconds)
            sleep(POLL_SECONDS)  # in which the end of a worker that died while it waited is noticed
            for number in numbers:
                if number in ranks and ranks[number].lost is not None:
                    del ranks[number]

    def _accept_remote(
        self,
        missing: Sequence[int],
        ranks: dict[int, ProcessRank],
        cleanup: ExitStack,
        deadline: float,
        seconds: float,
    ) -> None:
        """Take a worker for each of these ranks. Raises RankLost at the deadline."""
        for number in missing:
            assert self._listener is not None
            while number not in ranks:
                self._report("workers", len(ranks), self.size - 1)
                connection = self._listener.accept(POLL_SECONDS)
                if connection is not None:
                    with suppress(ConnectionLost):
                        hello = self._read_hello(connection)
                        ranks[number] = ProcessRank(f"rank {number} ({hello.host})", connection)
                        cleanup.callback(_abandon, ranks[number])
                elif monotonic() > deadline:
                    raise RankLost(
                        f"rank {number}: no worker has joined within {seconds:g} seconds. Run there: "
                        f"'spore worker --join {self._listener.address} --token-file FILE'"
                    )

    @staticmethod
    def _read_hello(connection: Connection) -> Hello:
        """Return the first message of a process. Raises ConnectionLost for anything else, and BackendError for another
        version, which might not understand the next message."""
        try:
            payload = connection.receive(HELLO_SECONDS)
            hello = decode_reply(payload) if payload is not None else None
        except SporeError as reason:
            connection.close()
            raise ConnectionLost(str(reason)) from None
        if not isinstance(hello, Hello):
            connection.close()
            raise ConnectionLost(f"{connection.peer}: did not introduce itself")
        if hello.version != __version__:
            connection.close()
            raise BackendError(
                f"rank of host {safe_repr(hello.host, 100)}: another version of sporelm (got "
                f"{safe_repr(hello.version, 40)}; allowed {__version__}). Install the same version on all hosts."
            )
        return hello

    def _wait_ready(self, ranks: Mapping[int, ProcessRank], pending: Replies) -> dict[int, RankReady]:
        """Return the answers of all ranks, and report how far they are. Raises the error of the first that fails."""
        while waiting := [number for number, reply in pending.items() if not reply.done()]:
            _raise_failures(pending)
            phase = ranks[waiting[0]].phase
            name = f"rank {waiting[0]}: {phase}" if phase else "workers"
            self._report(name, len(pending) - len(waiting), len(pending))
            wait([pending[number] for number in waiting], POLL_SECONDS)
        self._report("workers", len(pending), len(pending))
        ready: dict[int, RankReady] = {}
        for number, reply in pending.items():
            answer = reply.result()
            if not isinstance(answer, RankReady):
                raise BackendError(f"{ranks[number].name}: {type(answer).__name__} came in place of RankReady")
            ready[number] = answer
        return ready

    def _check_ready(self, ranks: Mapping[int, ProcessRank], ready: Mapping[int, RankReady], signature: str) -> None:
        """Raise BackendError for a rank with another model, or whose plan differs from that of the first one of its
        stage. `signature` is rank 0's."""
        stages = {0: ("rank 0", signature)}
        for number, answer in ready.items():
            name = ranks[number].name
            if answer.identity != self.options.identity:
                raise BackendError(
                    f"{name}: another model (hash {answer.identity[:12]}). Use the same file everywhere."
                )
            first, allowed = stages.setdefault(self.parallel.config.stage(number), (name, answer.signature))
            if answer.signature != allowed:
                raise BackendError(
                    f"{name}: its plan differs from that of {first} (got {answer.signature[:12]}; allowed "
                    f"{allowed[:12]}). Use the same version and options on all hosts."
                )

    def _options_of(self, number: int, folder: Path | None = None) -> RankOptions:
        """Return the options of a rank; `folder` has the files of the groups."""
        config, spec, num_local = self.parallel.config, self.options.group, self.parallel.num_local
        if folder is not None and self._uses_torch:
            assert self._listener is not None
            spec = GroupSpec("torch", self._listener.address.resolved_host if number < num_local else "")
        elif folder is not None:
            world = str(folder / WORLD) if config.pp > 1 else ""
            kind = "nccl" if self.parallel.uses_nccl else "memory"
            spec = GroupSpec(kind, str(folder / f"stage{config.stage(number)}"), world)
        known = msgspec.structs.replace(self.options, rank=number, group=spec)
        if self.parallel.devices:
            backend, device = self.parallel.devices[number]
            dtype = "auto" if backend in HOST_BACKENDS else known.dtype
            known = msgspec.structs.replace(known, backend=backend, device=device, dtype=dtype)
        if number >= num_local:  # of another host, which has cores of its own
            return known
        threads = rank_threads(self.options.threads, self.parallel)
        cores = assign_cores(num_local, sum(threads), read_numa_nodes(), usable_core_numbers())
        return msgspec.structs.replace(known, threads=threads[number], cores=cores[number])

    def _members(
        self, worker: Worker, others: Sequence[Rank], abort: Callable[[], None], close: Callable[[], None]
    ) -> GroupMembers:
        """Return the members of the group, and how the model is divided over them."""
        config, model = self.parallel.config, worker.runner.model
        assert isinstance(model, ShardedModel)
        shards = find_group_shards(model.sharding_plan, model.model.memory(), model.config.vocab, config)
        return GroupMembers(
            worker=worker,
            others=others,
            abort=abort,
            close=close,
            page_shards=shards.pages,
            state_shards=shards.states,
            logits=shards.logits,
            token_rank=(config.pp - 1) * config.tp,
            micro_batches=config.micro_batches or config.pp,
            kv=worker.kv if worker.runner.paged or not any(shards.pages) else self.options.kv,
        )

    def _report(self, phase: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(phase, done, total)


def ignore_phase(phase: str) -> None:
    """Do nothing with the phase of a rank that is a thread of this process."""


def rank_threads(threads: int, parallel: ParallelOptions) -> list[int]:
    """Return the threads of each rank of this host, given those of all of them."""
    return share_threads(threads, parallel.num_local)


def note_waiting_threads(threads: int, parallel: ParallelOptions, backend: str) -> str:
    """Return a note for the user if the ranks of this host have more threads that compute than it has usable cores; ""
    if not. `threads` are those of all ranks of this host, `backend` is that of ranks without one of their own."""
    counts = rank_threads(threads, parallel)
    names = [name for name, _ in parallel.devices] or [backend] * len(counts)
    total = sum(count for count, name in zip(counts, names, strict=False) if name in HOST_BACKENDS)
    cores = usable_cores()
    if parallel.is_single or total <= cores:
        return ""
    fewer = "ranks" if total == parallel.num_local else "ranks or threads"
    return (
        f"ranks: more threads than usable cores, so they take turns (got {total} of {parallel.num_local} ranks; usable "
        f"{cores}). Use fewer {fewer}."
    )


def _listen(parallel: ParallelOptions) -> RankListener:
    assert parallel.address is not None
    assert parallel.token_path is not None
    parallel.address.resolve()  # before a file is created
    token, is_new = read_or_create_token(parallel.token_path)
    if is_new:
        log.warning("made the token file %s: copy it to the other hosts over a secure channel", parallel.token_path)
    tls = server_tls(*parallel.tls_paths) if parallel.tls_paths is not None else None
    return RankListener(parallel.address, token, tls=tls)


def _start_process(start: str) -> "subprocess.Popen[bytes]":
    """Start a process with the options in its standard input, which no other process can read."""
    # The child gets neither a terminal's Ctrl-C nor its hang-up: it ends with the connection.
    command = [sys.executable, "-S", "-P", "-c", _START, json.dumps(sys.path)]
    try:
        if sys.platform == "win32":
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
            )
        else:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
    except OSError as reason:
        raise BackendError(f"ranks: cannot start a process ({reason})") from None
    assert process.stdin is not None
    with suppress(OSError):  # it has ended, which is noticed later
        process.stdin.write(f"{start}\n".encode())
        process.stdin.close()
    return process


def _end_process(process: "subprocess.Popen[bytes]", *, at_once: bool = False) -> None:
    """Wait for a process to end, or kill it."""
    if not at_once:
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
    if process.poll() is None:
        process.kill()
    process.wait()


def _explain_end(process: "subprocess.Popen[bytes]") -> str:
    """Return how a process has ended whose connection is lost; "" if it still runs."""
    with suppress(subprocess.TimeoutExpired):
        return f"its process has ended ({_name_code(process.wait(END_SECONDS))})"
    return ""


def _name_code(code: int) -> str:
    """Return what an exit code of `subprocess` stands for."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {-code}, {signal.Signals(-code).name}"
    return f"signal {-code}"


def _abandon(rank: ProcessRank) -> None:
    """End a rank whose group cannot be started: at once, since it may load weights."""
    rank.lose("the ranks could not be started")
    rank.close()


def _abort_all(groups: Sequence[JoinedGroups]) -> None:
    """Make the waits of all ranks end."""
    for each in groups:
        each.abort()


def _check_alive(processes: "dict[int, subprocess.Popen[bytes]]", ranks: dict[int, ProcessRank]) -> None:
    """Raise RankLost if a process has ended before it has connected."""
    for number, process in processes.items():
        if number not in ranks and (code := process.poll()) is not None:
            raise RankLost(f"rank {number}: its process has ended at its start ({_name_code(code)})")


def _raise_failures(pending: Replies) -> None:
    """Raise the error of a rank that cannot start."""
    for reply in pending.values():
        if reply.done():
            reply.result()


def start_group(
    backend: Backend, options: RankOptions, parallel: ParallelOptions, progress: Progress | None, plan: ShardingPlan
) -> WorkerGroup:
    """Start the ranks of a model, with rank 0 in this process; return them as one worker. Raises SporeError.

    backend   of rank 0, whose weights stay on it when the ranks are started again
    options   of rank 0, with the threads of all ranks of this host
    plan      how the model is divided
    """
    weights: dict[str, Any] = {}

    def open_first(first: RankOptions, groups: JoinedGroups, report: Progress) -> Worker:
        if isinstance(backend, ThreadStarter):  # while this thread is pinned
            backend.start_threads()
        with closing(open_model(Path(first.path))) as source:
            loader = open_loader(source, backend, first, groups, plan)
            if not weights:
                weights.update(loader.load_decoder(first.limits.max_context, first.threads, report).weights)
            assert isinstance(loader.model, ShardedModel)
            loaded = LoadedModel(loader.model, weights)
            return loader.create_worker(loaded, first.limits, report, eager=first.eager)

    launcher = RankLauncher(options, parallel, open_first, progress, plan)
    try:
        return WorkerGroup(launcher.start, options.limits, launcher.close)
    except BaseException:
        launcher.close()
        raise


def check_supported(parallel: ParallelOptions, *, is_encoder: bool, is_split: bool) -> None:
    """Raise UnsupportedModel for a model that runs on one rank only."""
    if parallel.is_single:
        return
    if is_encoder:
        raise UnsupportedModel("the option tp: encoders run on one rank. Leave out tp and pp.")
    if is_split:
        raise UnsupportedModel("the option tp: a model is not split between a device and the CPU then. Leave one out.")
