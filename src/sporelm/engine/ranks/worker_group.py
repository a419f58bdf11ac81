"""The worker group: all ranks of a model, which the engine uses like one worker.

Every step goes to the other ranks first; then rank 0 runs its own part in the calling thread. The replies of the others
are awaited before the next step.

One rule covers all waits: when a rank is lost, the group gives up all of its ranks. Each of them leaves its waits for
others, all futures raise RankLost, rank 0's groups are aborted, and the group raises RankLost until it is restarted. A
rank counts as lost when its process ends or stalls, when it alone fails a step, and when rank 0 does.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, Progress
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.offload import FinishExport
from sporelm.engine.lora_runtime import LoraRuntime, LoraWeights
from sporelm.engine.model_output import ModelOutput, PreviousTokens
from sporelm.engine.ranks import messages
from sporelm.engine.ranks.cache_shards import RankShards, join_arrays, needs_rank, shard_arrays
from sporelm.engine.ranks.message_handler import MessageHandler, use_images
from sporelm.engine.ranks.messages import Arrays, Reply, Request
from sporelm.engine.ranks.micro_batches import split_step
from sporelm.engine.ranks.rank import Envelope, Rank
from sporelm.engine.runner import Runner
from sporelm.engine.step import Step
from sporelm.engine.worker import Recorder, Worker, run_recorded
from sporelm.errors import RankLost

log = logging.getLogger(__name__)

MAX_PART_BYTES = 64 << 20  # of one message with pages, logits or matrices, if it can be divided
AGREE_SECONDS = 2.0  # for the other ranks to complete a step that failed on rank 0
T = TypeVar("T")


@dataclass(frozen=True)
class LogitColumns:
    """The columns of the logits that a rank has."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True)
class GroupMembers:
    """The ranks of a running group, and how the model is divided over them.

    worker         rank 0's, in this process
    others         the ranks from 1 on
    abort          makes native waits of rank 0 return
    close          ends the processes and frees shared memory, after the ranks were closed
    page_shards      of the paged caches of each rank, rank 0 first
    state_shards     of the recurrent state arrays of each rank
    logits         the ranks with logits, by columns; (): rank 0 has all
    token_rank     the rank whose argmax counts; of a pipeline, one of the last stage
    micro_batches  parts of a step
    kv             data type of pages, a value of --kv; "": that of rank 0's worker, which may have none
    """

    worker: Worker
    others: Sequence[Rank]
    abort: Callable[[], None]
    close: Callable[[], None]
    page_shards: Sequence[RankShards]
    state_shards: Sequence[RankShards]
    logits: Sequence[LogitColumns] = ()
    token_rank: int = 0
    micro_batches: int = 1
    kv: str = ""


@dataclass
class _LoraSet:
    """Adapters that all ranks have compiled.

    key      the runtime that the caller has
    runtime  of rank 0's present worker, which may be a later one
    """

    number: int
    adapters: Mapping[int, LoraWeights]
    key: LoraRuntime = field(repr=False)
    runtime: LoraRuntime = field(repr=False)


class WorkerGroup:
    """The ranks of one model. The engine makes one call at a time; LoRA sets may be built meanwhile."""

    def __init__(
        self, start: Callable[[], GroupMembers], limits: EngineConfig, on_close: Callable[[], None] | None = None
    ) -> None:
        """Start the ranks. `start` is called again for each restart, `on_close` after the last ranks have ended. Raises
        what `start` raises."""
        self.limits = limits
        self.recorder: Recorder | None = None
        self.num_restarts = 0
        self.lost: str | None = None  # the reason
        self.is_restarting = False  # any thread may read it
        self._start = start
        self._on_close = on_close
        self._changing = threading.Lock()
        self._pending: list[Future[Reply]] = []  # of the last step
        self._call_number = 0  # of calls that all ranks carry out together
        self._is_unfinished = False  # rank 0 has not done its part of the last one
        self._has_sent = True  # all messages of the last one
        self._image_columns = 0
        self._page_bytes = 0  # of the rank with the largest pages; 0: not known yet
        self._num_outputs = 0  # of the last step
        self._building = threading.RLock()  # held by builds of LoRA sets, and while ranks end and start
        self._lora_number = 0  # of the newest set, or adapter
        self._adapters: dict[int, tuple[int, LoraWeights]] = {}  # with their numbers, by id; the ranks have them
        self._lora_sets: dict[int, _LoraSet] = {}  # by the id of the caller's runtime
        self._lora_set: _LoraSet | None = None  # in use
        self._is_closed = False
        self._ended: GroupMembers | None = None  # that were closed
        self._enter(start())

    # ---- of rank 0

    @property
    def worker(self) -> Worker:
        """Rank 0's worker."""
        return self._members.worker

    @property
    def runner(self) -> Runner:
        """Rank 0's runner."""
        return self.worker.runner

    @property
    def device(self) -> Backend:
        """Rank 0's back-end."""
        return self.worker.device

    @property
    def size(self) -> int:
        """The number of ranks."""
        return 1 + len(self._members.others)

    @property
    def kv(self) -> str:
        """The data type of pages, a value of --kv."""
        return self._members.kv or self.worker.kv

    # ---- steps

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile all programs of all ranks now."""
        pending = self._send_all(messages.Prepare())
        self.worker.prepare(progress)
        self._wait(pending)

    def run(self, step: Step, previous: PreviousTokens | None = None) -> ModelOutput:
        """Run a step on all ranks; the output is valid until the next step. Raises RankLost."""
        assert previous is None
        if self.recorder is None:
            return self._run(step)
        return run_recorded(self._run, step, self.recorder.record_step)

    def embed(self, step: Step) -> NDArray[np.float32]:
        """Run a step on all ranks; return its last hidden states. Raises RankLost."""
        if self.recorder is None:
            return self._embed(step)
        return run_recorded(self._embed, step, self.recorder.record_embed)

    def _run(self, step: Step) -> ModelOutput:
        members = self._members
        requests = [
            [messages.RunStep(each, index, wants_tokens, keeps_output) for index, each in enumerate(steps)]
            for steps in [split_step(step, members.micro_batches)]
            for wants_tokens, keeps_output in ((False, False), (False, True), (True, True))
        ]
        envelopes = [[Envelope(request) for request in each] for each in requests]
        kinds = [self._output_kind(rank) for rank in range(self.size)]
        sends = [
            (other, envelopes[kind][index])
            for index in range(len(requests[0]))
            for kind, other in zip(kinds[1:], members.others, strict=True)
        ]
        replies = self._run_all(sends, lambda: [self._handler.handle(request) for request in requests[kinds[0]]])[0]
        token_replies = replies[members.token_rank - 1 :: len(members.others)] if members.token_rank else []
        if members.token_rank:
            argmax = np.concatenate([arrays[0] for arrays in self._arrays_of(self._wait_step(token_replies))])
        else:
            argmax = self._run_here(self._handler.argmax)
        self._num_outputs = step.num_outputs
        return GroupOutput(argmax, self, step.num_outputs)

    def _output_kind(self, rank: int) -> int:
        """Return 2 for the rank whose tokens count, 1 for others with logits, else 0."""
        if rank == self._members.token_rank:
            return 2 if rank else 1
        return int(any(columns.rank == rank for columns in self._members.logits))

    def _embed(self, step: Step) -> NDArray[np.float32]:
        members, token_rank = self._members, self._members.token_rank
        sends = [
            (other, Envelope(messages.EmbedStep(step, rank == token_rank)))
            for rank, other in enumerate(members.others, 1)
        ]
        replies, hidden = self._run_all(sends, lambda: self.worker.embed(step))
        if not token_rank:
            return hidden
        num_rows, width = self._arrays_of(self._wait_step([replies[token_rank - 1]]))[0][0].tolist()
        count = max(1, MAX_PART_BYTES // (4 * width))
        fetches = [messages.FetchHidden(start, start + count) for start in range(0, num_rows, count)]
        parts = [members.others[token_rank - 1].send(Envelope(each)) for each in fetches]
        return np.concatenate(
            [np.empty((0, width), np.float32), *(part[0] for part in self._arrays_of(self._wait(parts)))]
        )

    def fetch_logits(self, rows: list[int] | None) -> NDArray[np.float32]:
        """Return rows of the last step's logits, of all columns."""
        members = self._members
        if not members.logits:
            return self._handler.fetch_logits(rows)
        count = max(1, MAX_PART_BYTES // (4 * max(columns.stop - columns.start for columns in members.logits)))
        numbers = list(range(self._num_outputs)) if rows is None else rows
        if len(numbers) <= count:
            return self._fetch_rows(rows)
        batches = [numbers[begin : begin + count] for begin in range(0, len(numbers), count)]
        return np.concatenate([self._fetch_rows(batch) for batch in batches])

    def _fetch_rows(self, rows: list[int] | None) -> NDArray[np.float32]:
        members = self._members
        replies = self._ask_logit_ranks(messages.FetchLogits(rows))
        parts: list[NDArray[np.float32]] = []
        for columns in members.logits:
            if columns.rank:
                parts.append(self._arrays_of(self._wait([replies[columns.rank]]))[0][0])
            else:
                parts.append(self._run_here(lambda: self._handler.fetch_logits(rows)))
        logits = np.empty((len(parts[0]), max(columns.stop for columns in members.logits)), np.float32)
        for columns, part in zip(members.logits, parts, strict=True):
            logits[:, columns.start : columns.stop] = part
        return logits

    def fetch_candidates(self, count: int) -> NDArray[np.float32]:
        """Return logits of all columns with -inf in place of all but the `count` greatest of a row."""
        members = self._members
        if not members.logits:
            return self._handler.fetch_logits(None)
        replies = self._ask_logit_ranks(messages.FetchCandidates(count))
        logits: NDArray[np.float32] | None = None
        for columns in members.logits:
            if columns.rank:
                ids, values = self._arrays_of(self._wait([replies[columns.rank]]))[0]
            else:
                ids, values = self._run_here(lambda: self._handler.find_candidates(count))
            if logits is None:
                width = max(each.stop for each in members.logits)
                logits = np.full((len(ids), width), -np.inf, np.float32)
            np.put_along_axis(logits, ids.astype(np.intp) + columns.start, values, axis=1)
        assert logits is not None
        return logits

    def _ask_logit_ranks(self, request: Request) -> dict[int, "Future[Reply]"]:
        self._check_finished()
        envelope = Envelope(request)
        ranks = [columns.rank for columns in self._members.logits if columns.rank]
        return {rank: self._members.others[rank - 1].send(envelope) for rank in ranks}

    # ---- pages and states

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """Return the pages of each layer in canonical form: the KV heads of all ranks."""
        return self.start_export(pages, [])()[0]

    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]:
        """Return recurrent states, each array of each layer: [states, ...]."""
        return self.start_export([], states)()[1]

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> FinishExport:
        """Begin to copy pages and states to the host; later steps do not change the copies."""
        self._check_finished()
        members, page_list, state_list = self._members, list(pages), list(states)
        ranks = [
            rank
            for rank in range(1, self.size)
            if needs_rank(members.page_shards, rank) or needs_rank(members.state_shards, rank)
        ]
        page_lists = self._page_batches(page_list)
        replies = {
            rank: [
                members.others[rank - 1].send(Envelope(messages.ExportPages(batch, state_list if not number else [])))
                for number, batch in enumerate(page_lists)
            ]
            for rank in ranks
        }
        finish_here = self._run_here(lambda: self.worker.start_export(page_list, state_list))

        def finish() -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
            layers_here, states_here = finish_here()
            layer_parts, state_parts = [layers_here], [states_here]
            page_shards, state_shards = [members.page_shards[0]], [members.state_shards[0]]
            for rank in ranks:
                found = self._arrays_of(self._wait(replies[rank]))
                count = len(members.page_shards[rank])
                batches = zip(*(each[:count] for each in found), strict=True)
                layer_parts.append([np.concatenate(layers) for layers in batches])
                state_parts.append(found[0][count:])
                page_shards.append(members.page_shards[rank])
                state_shards.append(members.state_shards[rank])
            return join_arrays(page_shards, layer_parts), join_arrays(state_shards, state_parts)

        return finish

    def _page_batches(self, pages: list[int]) -> list[list[int]]:
        """Return pages in lists that fit into one reply; one list at least."""
        if not self._page_bytes:
            replies = self._arrays_of(self._wait(self._send_all(messages.ExportPages([], []))))
            ranks = [self._run_here(lambda: self.worker.export_pages([])), *replies]
            self._page_bytes = max(sum(prod(layer.shape[1:]) * layer.itemsize for layer in layers) for layers in ranks)
        count = max(1, MAX_PART_BYTES // max(1, self._page_bytes))
        return [pages[begin : begin + count] for begin in range(0, len(pages), count)] or [[]]

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Fill the pages of all ranks with the result of `export_pages`. Changes the caches."""
        count = self._pages_per_message(layers, len(pages))
        for begin in range(0, len(pages), count):
            self._import_pages(list(pages[begin : begin + count]), [layer[begin : begin + count] for layer in layers])
        if self.recorder is not None:
            self.recorder.record_import(pages)

    def _import_pages(self, pages: list[int], layers: Sequence[NDArray[Any]]) -> None:
        self._import(
            self._members.page_shards,
            layers,
            lambda arrays: messages.ImportPages(pages, arrays),
            lambda arrays: self.worker.import_pages(pages, arrays),
        )

    @staticmethod
    def _pages_per_message(layers: Sequence[NDArray[Any]], num_pages: int) -> int:
        nbytes = sum(layer.nbytes for layer in layers) // max(1, num_pages)
        return max(1, MAX_PART_BYTES // max(1, nbytes))

    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Fill states of all ranks with the result of `export_states`. Changes the caches."""
        state_list = list(states)
        if not arrays:
            return
        self._import(
            self._members.state_shards,
            arrays,
            lambda parts: messages.ImportStates(state_list, parts),
            lambda parts: self.worker.import_states(state_list, parts),
        )

    def _import(
        self,
        shards: Sequence[RankShards],
        arrays: Sequence[NDArray[Any]],
        make_request: Callable[[list[NDArray[Any]]], Request],
        import_here: Callable[[list[NDArray[Any]]], None],
    ) -> None:
        sends = [
            (other, Envelope(make_request(shard_arrays(rank_shards, arrays))))
            for other, rank_shards in zip(self._members.others, shards[1:], strict=True)
        ]
        self._run_all(sends, lambda: import_here(shard_arrays(shards[0], arrays)))
        self._settle()

    # ---- LoRA and images

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        """Return rank 0's runtime for these adapters, by id; the other ranks build theirs. Steps wait for them.

        If a rank is lost meanwhile, its successor builds the set when the ranks are started again.
        """
        with self._building:
            members = self._members
            if self._ended is members:
                raise RankLost(self.lost or "")
            number = self._lora_number = self._lora_number + 1
            pending = self._send_lora(members, number, adapters) if self.lost is None else []
            try:
                runtime = members.worker.build_lora_runtime(adapters)
            except BaseException:
                self._discard_from_others(members, number)
                raise
            self._lora_sets[id(runtime)] = _LoraSet(number, adapters, runtime, runtime)
            try:
                self._wait(pending)
            except RankLost:
                if self._is_closed:
                    raise
            except BaseException:
                self.discard_lora_runtime(runtime)
                raise
            return runtime

    def _send_lora(
        self, members: GroupMembers, number: int, adapters: Mapping[int, LoraWeights]
    ) -> list["Future[Reply]"]:
        """Let the other ranks build a set, of adapters that they get only once."""
        pending: list[Future[Reply]] = []
        for adapter in adapters.values():
            if id(adapter) in self._adapters:
                continue
            self._lora_number += 1
            self._adapters[id(adapter)] = self._lora_number, adapter
            for part in messages.split_adapter(adapter, MAX_PART_BYTES):
                put = Envelope(messages.PutAdapter(self._lora_number, part))
                pending += [rank.send(put) for rank in members.others]
        numbers = {adapter_id: self._adapters[id(adapter)][0] for adapter_id, adapter in adapters.items()}
        build = Envelope(messages.BuildLora(number, numbers))
        return pending + [rank.send(build) for rank in members.others]

    def _discard_from_others(self, members: GroupMembers, number: int) -> None:
        """Let the other ranks free a set, and the adapters that no set has."""
        used = {id(adapter) for each in self._lora_sets.values() for adapter in each.adapters.values()}
        unused = [numbered for key, numbered in self._adapters.items() if key not in used]
        self._adapters = {key: numbered for key, numbered in self._adapters.items() if key in used}
        if self.lost is not None:
            return
        envelopes = [Envelope(messages.DiscardLora(number))] if number else []
        if unused:
            envelopes.append(Envelope(messages.DropAdapters([adapter for adapter, _ in unused])))
        for rank in members.others:
            for envelope in envelopes:
                rank.send(envelope)

    def missing_adapter(self, step: Step) -> int | None:
        """Return the id of an adapter of a step that is not loaded."""
        return self.worker.missing_adapter(step)

    def set_lora_runtime(self, lora_runtime: LoraRuntime | None) -> None:
        """Run steps with these adapters from the next one on; None: with none."""
        with self._building:
            chosen = self._lora_sets[id(lora_runtime)] if lora_runtime is not None else None
            use = Envelope(messages.UseLora(chosen.number if chosen is not None else 0))
            sends = [(rank, use) for rank in self._members.others]
            self._run_all(sends, lambda: self.worker.set_lora_runtime(chosen.runtime if chosen is not None else None))
            self._settle()
            former, self._lora_set = self._lora_set, chosen
            if former is not None and former is not chosen:
                self._lora_sets.pop(id(former.key), None)
            self._discard_from_others(self._members, 0)

    def discard_lora_runtime(self, lora_runtime: LoraRuntime) -> None:
        """Free a runtime that `set_lora_runtime` did not get."""
        with self._building:
            discarded = self._lora_sets.pop(id(lora_runtime), None)
            if discarded is None:
                return
            self._discard_from_others(self._members, discarded.number)
            if self._ended is not self._members:
                self.worker.discard_lora_runtime(discarded.runtime)

    def use_images(self, columns: int) -> None:
        """Take image rows of `columns` values from now on."""
        self._image_columns = columns
        pending = self._send_all(messages.UseImages(columns))
        use_images(self.worker, columns)
        self._wait(pending)

    # ---- loss and restart

    def restart(self) -> None:
        """End all ranks, and start them again with empty caches. Raises SporeError; it may be tried again."""
        with self._building:
            self.is_restarting = True
            try:
                self._leave()
                self._enter(self._start())
                try:
                    self._restore(self._members)
                except BaseException:
                    self._leave()
                    raise
                self.num_restarts += 1
            finally:
                self.is_restarting = False

    def _restore(self, members: GroupMembers) -> None:
        """Give new ranks the adapters, and the images, of those before."""
        if self._image_columns:
            pending = [rank.send(Envelope(messages.UseImages(self._image_columns))) for rank in members.others]
            use_images(members.worker, self._image_columns)
            self._wait(pending)
        for each in self._lora_sets.values():
            pending = self._send_lora(members, each.number, each.adapters)
            each.runtime = members.worker.build_lora_runtime(each.adapters)
            self._wait(pending)
        if self._lora_set is not None:
            use = Envelope(messages.UseLora(self._lora_set.number))
            pending = [rank.send(use) for rank in members.others]
            members.worker.set_lora_runtime(self._lora_set.runtime)
            self._wait(pending)

    def close(self) -> None:
        """End all ranks and free their memory. Closing again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._leave()
            finally:
                if self._on_close is not None:
                    self._on_close()

    def _enter(self, members: GroupMembers) -> None:
        self._members = members
        self._handler = MessageHandler(members.worker)
        self._pending = []
        self._is_unfinished = False
        self._has_sent = True
        self._adapters = {}
        self.lost = None
        for rank in members.others:
            rank.watch(lambda reason: self._lose(members, reason))

    def _leave(self) -> None:
        """End the ranks, unless they were ended before: in good order, if none is lost."""
        with self._building:
            members = self._members
            if self._ended is members:
                return
            self._ended = members
            with self._changing:
                self.lost = self.lost or "the ranks were closed"
            _end(members)

    def _lose(self, members: GroupMembers, reason: str) -> None:
        """Note that a rank is lost, and give all ranks up, so that no wait for any of them lasts. Any thread may call
        this."""
        with self._changing:
            if self.lost is not None or self._members is not members:
                return
            self.lost = reason
        log.warning("ranks: %s", reason)
        members.abort()
        for rank in members.others:
            rank.lose(reason)

    def _check(self) -> None:
        if self.lost is not None:
            raise RankLost(self.lost)

    def _check_finished(self) -> None:
        """Raise RankLost, also if rank 0 was interrupted in a step, for which the others wait."""
        if self._is_unfinished:
            self._lose(self._members, "rank 0: its part of a step was interrupted")
        self._check()

    def _run_all(
        self, sends: Sequence[tuple[Rank, Envelope]], compute: Callable[[], T]
    ) -> "tuple[list[Future[Reply]], T]":
        """Send messages, run rank 0's part, and return the futures of the others and its result.

        The group is lost if rank 0 fails, or is interrupted, while another rank succeeds or waits for it. It is also
        lost if another rank fails alone.
        """
        self._settle()
        members, self._call_number = self._members, self._call_number + 1
        fail = partial(self._doubt, members, self._call_number)
        self._is_unfinished = True  # until every rank carries the messages out, or none does

        def send_and_compute() -> T:
            for rank, envelope in sends:
                self._pending.append(rank.send(envelope))
                self._pending[-1].add_done_callback(fail)
            self._has_sent = True
            return compute()

        self._has_sent = False
        result = self._run_here(send_and_compute)
        self._is_unfinished = False
        return list(self._pending), result

    def _run_here(self, compute: Callable[[], T]) -> T:
        """Return rank 0's result. If it fails while others succeed or wait, the group is lost."""
        try:
            return compute()
        except BaseException as error:
            if self.lost is None and not (self._has_sent and self._have_others_finished()):
                self._lose(self._members, f"rank 0 failed ({type(error).__name__}: {error})")
            self._is_unfinished = False
            if self.lost is not None and isinstance(error, Exception):
                raise RankLost(self.lost) from error
            raise

    def _have_others_finished(self) -> bool:
        """Return whether the other ranks have carried out the messages at which rank 0 failed, so that none waits for
        it."""
        try:
            for reply in self._pending:
                reply.exception(AGREE_SECONDS)
        except FutureTimeout:
            return False
        self._pending = []
        self._call_number += 1  # they agree
        return self.lost is None

    def _doubt(self, members: GroupMembers, number: int, reply: "Future[Reply]") -> None:
        """Lose the group if a rank has failed call `number` and rank 0 does not fail likewise soon: it may wait for
        that rank. Called in any thread with each reply."""
        error = reply.exception()
        if error is None or self.lost is not None:
            return
        if isinstance(error, RankLost):
            self._lose(members, str(error))
            return

        def lose() -> None:
            if self._call_number == number:
                self._lose(members, str(error))

        timer = threading.Timer(AGREE_SECONDS, lose)
        timer.daemon = True
        timer.start()

    def _send_all(self, request: Request) -> list["Future[Reply]"]:
        self._check()
        envelope = Envelope(request)
        return [rank.send(envelope) for rank in self._members.others]

    def _settle(self) -> None:
        """Wait until the other ranks have carried out the last step. Raises RankLost if one has failed."""
        self._check_finished()
        while self._pending:  # an interrupted wait goes on with the next call
            self._wait_step(self._pending[:1])
            del self._pending[:1]

    def _wait_step(self, replies: Sequence["Future[Reply]"]) -> list[Reply]:
        """Return replies to a step. Raises RankLost if it has failed: rank 0 has succeeded, so the caches differ."""
        try:
            return self._wait(replies)
        except RankLost:
            raise
        except Exception as error:
            self._lose(self._members, str(error))
            raise RankLost(str(error)) from error

    def _wait(self, replies: Sequence["Future[Reply]"]) -> list[Reply]:
        """Return replies. Raises RankLost as soon as any rank of the group is lost, else what a rank has raised."""
        try:
            found = [reply.result() for reply in replies]
        except RankLost as error:
            raise RankLost(self.lost or str(error)) from None
        self._check()
        return found

    def _arrays_of(self, replies: Sequence[Reply]) -> list[list[NDArray[Any]]]:
        """Return the results in replies. Raises RankLost for replies of another kind."""
        for reply in replies:
            if not isinstance(reply, Arrays):
                self._lose(self._members, f"{type(reply).__name__} came in place of arrays")
                raise RankLost(f"{type(reply).__name__} came in place of arrays")
        return [list(reply.arrays) for reply in replies if isinstance(reply, Arrays)]


AnyWorker = Worker | WorkerGroup


class GroupOutput(ModelOutput):
    """The output of a step of a group. Logits are fetched from the ranks that have them, when they are read."""

    def __init__(self, argmax: NDArray[np.int32], group: WorkerGroup, num_rows: int) -> None:
        super().__init__(argmax, None, None, None)
        self._group = group
        self._row_count = num_rows

    def read_candidates(self, count: int) -> None:
        """Let `logits` have only the `count` greatest of each row; -inf in place of the others."""
        self._logits = self._group.fetch_candidates(count)

    @property
    def logits(self) -> NDArray[np.float32]:
        """All logits: float32 [rows, vocab]."""
        if self._logits is None:
            no_logits = np.empty((0, self._group.limits.vocab), np.float32)
            self._logits = self._group.fetch_logits(None) if self._row_count else no_logits
        return self._logits

    def rows(self, numbers: Sequence[int]) -> NDArray[np.float32]:
        """Return copies of the logits of some rows."""
        if self._logits is not None:
            return self._logits[list(numbers)]
        return self._group.fetch_logits(list(numbers))


def _end(members: GroupMembers) -> None:
    """Close the ranks, the worker of rank 0, and the processes."""
    try:
        members.abort()
        for rank in members.others:
            rank.begin_close()
        for rank in members.others:
            rank.close()
    finally:
        try:
            members.worker.close()
        finally:
            members.close()
