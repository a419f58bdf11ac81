"""The engine: requests in, tokens out, step by step. It knows token ids only."""

import threading
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv import KvCache, KvSequence, OffloadStore
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.kv.session_io import CacheLayout, SessionData, check_replaceable, read_session, write_session
from sporelm.engine.lora_runtime import LoraRuntime
from sporelm.engine.prompt_rows import PromptRowsRunner, RowsCallback
from sporelm.engine.request import FinishReason, Request
from sporelm.engine.runner import ModelOutput
from sporelm.engine.sampling import Sampler
from sporelm.engine.scheduler import Scheduler, StepOutput
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import Step
from sporelm.errors import MemoryShortage, RequestError


class StepRunner(Protocol):
    """What computes steps: a worker, or a test's stand-in."""

    def run(self, step: Step) -> ModelOutput: ...
    def embed(self, step: Step) -> NDArray[np.float32]: ...
    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None: ...
    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None: ...
    def use(self, adapted: LoraRuntime | None) -> None: ...


class EngineObserver(Protocol):
    """Who is told what the engine does, in the thread that does it."""

    def added(self, request: Request) -> None: ...
    def ended(self, request: Request) -> None: ...
    def stepped(self, step: Step, moments: Sequence[float]) -> None:
        """`moments`, of perf_counter: it began, and was scheduled, computed, sampled and committed."""


class Engine:
    """Continues requests together. Threads may share one: each call has it for itself, and every step serves all."""

    def __init__(
        self,
        worker: StepRunner,
        limits: EngineConfig,
        speculation: Speculation | None = None,
        offload_store: OffloadStore | None = None,
    ) -> None:
        """Without an offload store, what an evicted sequence held is recomputed."""
        self.runner = worker
        self.limits = limits
        self.kv_cache = KvCache(limits.num_pages, limits.num_states, limits.state_interval, offload_store)
        self.scheduler = Scheduler(limits, self.kv_cache, speculation)
        self.metrics = self.scheduler.metrics
        self.speculation = speculation
        self.sampler = Sampler()
        self.observer: EngineObserver | None = None
        self.numbers = count(1)
        self.last = 0  # the number of the request that came last
        self._choosing: Step | None = None  # the step for which tokens are being chosen
        self._closed = False
        self.turn = threading.RLock()
        self.texts = PromptRowsRunner(self)

    def add(self, request: Request) -> Request:
        """Queue a request and give it its number. Raises ContextOverflow, QueueFull or RequestError if it cannot be
        served."""
        with self.turn:
            self.check_open()
            request.id = self.last = next(self.numbers)
            self.scheduler.add(request)
            ends = sorted(request.stop_ids)
            vocab, constraint = self.limits.vocab, request.constraint
            try:
                self.sampler.add(request.id, request.sampling, request.prompt, ends, vocab, constraint)
            except BaseException:  # without its choice it would be continued greedily
                self.scheduler.end(request, "error")
                raise
            if self.observer is not None:
                self.observer.added(request)
        return request

    def check_open(self) -> None:
        """Raise RequestError after `close`."""
        if self._closed:
            raise RequestError("this model is closed: open it again")

    def step(self) -> list[StepOutput]:
        """Run one step and say what it did for each request that has a new token or has ended. Where requests must wait
        for a text, it is one of that text.

        If it is interrupted or the back-end fails, the next step goes on as if this one had not been; only requests
        for whom tokens were being chosen may fail.
        """
        with self.turn:
            if self.scheduler.idle:
                self.texts.go_on()
                return []
            try:
                return self._step()
            except BaseException as reason:
                self._recover("error" if isinstance(reason, Exception) else "cancelled")
                raise

    def _step(self) -> list[StepOutput]:
        began = perf_counter()
        step = self.scheduler.next_step()
        if not step.sequences:
            self.texts.go_on()
            return []
        tokens = step.num_tokens
        scheduled = perf_counter()
        scores = self.runner.run(step)
        computed = perf_counter()
        self._choosing = step
        sampled = self.sampler.pick(scores.best, scores.logits, step)
        chosen = perf_counter()
        self._learn(step, tokens, sampled.tokens, computed - scheduled)
        outputs = self.scheduler.commit(step, sampled)
        self._choosing = None
        moments = (began, scheduled, computed, chosen, perf_counter())
        self.metrics.stepped(tokens, *moments)
        if self.observer is not None:
            self.observer.stepped(step, moments)
        for output in outputs:
            if output.finish_reason:
                self._forget(output.request)
        return outputs

    def _recover(self, reason: FinishReason) -> None:
        """A step did not come to its end. Its copies may not have been made, and generators and grammars may be ahead
        of what was said: keep the full pages alone, which it did not touch, and end those whose choosing began, or who
        had said their last."""
        step, self._choosing = self._choosing, None
        begun = (
            {scheduled.request_id for scheduled in step.sequences if scheduled.num_outputs}
            if step is not None
            else set[int]()
        )
        self.kv_cache.pop_state_copies()  # those whom they were for go back
        for request in list(self.scheduler.running.values()):
            if request.sequence is not None:
                self.kv_cache.rollback_step(request.sequence)
            if request.finish_reason is not None:
                self.scheduler.end(request, request.finish_reason)
                self._forget(request)
            elif request.id in begun and request.id in self.sampler.states:
                request.error = "a step was interrupted while its next token was chosen"
                self.scheduler.end(request, reason)
                self._forget(request)
            else:
                self.scheduler.restart_page(request)

    def run(self, requests: Sequence[Request]) -> None:
        """Step until all of these have ended; cancel them if interrupted."""
        try:
            while any(request.finish_reason is None for request in requests):
                self.step()
        finally:
            for request in requests:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request now. Changes the store. Does nothing if it has ended already, or was never added."""
        with self.turn:
            if request.finish_reason is None:
                self.scheduler.end(request, "cancelled")
                self._forget(request)

    def _learn(self, step: Step, tokens: int, said: Sequence[Sequence[int]], seconds: float) -> None:
        """What the time of a step of so many tokens says of the next ones. Those of a prompt may say nothing."""
        parts = len(step.sequences)
        if tokens == parts == len(said):
            decoding, prompts = parts, 0
        else:
            counts = [
                len(scheduled.tokens) for scheduled in step.sequences if scheduled.num_outputs == len(scheduled.tokens)
            ]
            decoding, prompts = len(counts), tokens - sum(counts)
        self.scheduler.prefill_budget.observe(decoding, prompts, seconds)
        if self.speculation is not None and decoding == parts:
            self.speculation.learn(step, said, seconds)

    def _forget(self, request: Request) -> None:
        """A request has ended."""
        if self.observer is not None:
            self.observer.ended(request)
        self.sampler.drop(request.id)
        if self.speculation is not None:
            self.speculation.end(request)

    def uses_adapter(self, number: int) -> bool:
        """Whether a request that waits or runs, or a text, has this adapter."""
        with self.turn:
            return self.scheduler.uses_adapter(number)

    def use_adapters(
        self, known: Mapping[int, str], adapted: LoraRuntime | None, titles: Mapping[int, str] | None = None
    ) -> None:
        """Have the runner use these adapters from the next step on; `known` by number says what each is known by,
        `titles` what users call it.

        Raises RequestError while a request uses one that would go.
        """
        with self.turn:
            self.check_open()
            for number in self.scheduler.adapters.keys() - known.keys() - {0}:
                if self.scheduler.uses_adapter(number):
                    raise RequestError("requests still use this adapter: wait for them, or cancel them first")
            self.runner.use(adapted)
            self.scheduler.adapters, self.scheduler.titles = {0: "", **known}, titles or {}

    def sequence(self, salt: str = "") -> KvSequence:
        """An empty sequence, to be given to requests one after the other; `drop` it at last.

        What it holds is found by others of the same salt alone.
        """
        with self.turn:
            self.check_open()
            return self.kv_cache.new_sequence(salt)

    def fork(self, sequence: KvSequence) -> KvSequence:
        """A sequence that begins with what this one holds, in shared pages."""
        with self.turn:
            self.check_open()
            return self.kv_cache.fork(sequence)

    def drop(self, sequence: KvSequence) -> None:
        """Forget a sequence. Raises RequestError while a request uses it."""
        with self.turn:
            if sequence.is_in_use:
                raise RequestError("a request still uses this sequence: cancel it first")
            self.kv_cache.drop(sequence)

    def sleep(self, sequence: KvSequence, path: Path, model: str, notes: dict[str, Any]) -> int:
        """Write what a sequence holds to a file, beside `notes`; the file's bytes. The sequence stays as it is.

        `model` is what the model is known by: only it can wake the file. Raises RequestError while a request uses the
        sequence, if the file cannot be written, or if there is one already that is no session.
        """
        check_replaceable(path)
        with self.turn:
            self.check_open()
            if sequence.is_in_use:
                raise RequestError("a request still uses this sequence: wait for it, or cancel it first")
            session = self._held(sequence)
        return write_session(path, session._replace(notes=notes, adapter=sequence.page_hashes.adapter), model).nbytes

    def _held(self, sequence: KvSequence) -> SessionData:
        """A copy of what a sequence holds, or of what it held when it gave way, if that is more."""
        store = self.kv_cache.offload_store
        if store is not None and len(tokens := store.tokens_of(sequence)) > sequence.length:
            held = store.load(sequence)
            if held is not None:
                return held._replace(tokens=list(tokens))
        layers = self.runner.export_pages(sequence.pages[: count_pages(sequence.length)])
        states = self.runner.export_states([sequence.state_slot] if sequence.tokens else [])
        return SessionData(list(sequence.tokens), layers, {}, states=states)

    def wake(
        self, path: Path, model: str, salt: str = "", *, legacy_models: Collection[str] = ()
    ) -> tuple[KvSequence, dict[str, Any]]:
        """A sequence that holds what a file does, and the file's notes. Idle sequences may give way to it. Earlier
        versions may have known the model by one of `legacy_models`.

        Raises ModelNotFound, ModelFileError, RequestError, and MemoryShortage if there are not the pages for it.
        """
        with self.turn:
            self.check_open()
            layout = CacheLayout(self.runner.export_pages([]), self.runner.export_states([]))
        models = [model, *legacy_models]
        session = read_session(path, models, layout, self.limits.max_context, self.limits.vocab)  # while others go on
        with self.turn:
            self.check_open()
            if session.adapter not in self.scheduler.adapters.values():
                told = f"an adapter that is not loaded, known by {session.adapter[:12]}"
                raise RequestError(f"{path} was made with {told}: load the adapter first")
            sequence = self.kv_cache.new_sequence(salt, session.adapter)
            self.kv_cache.acquire(sequence)  # or it would give way to itself
            try:
                if not self.kv_cache.reserve(sequence, len(session.tokens), []):
                    needed, scarce = (
                        count_pages(len(session.tokens)),
                        self.kv_cache.describe_shortage(sequence, len(session.tokens)),
                    )
                    had = (
                        f"{self.kv_cache.num_obtainable_pages()} can be had"
                        if not sequence.pages
                        else f"and {scarce} are in use"
                    )
                    raise MemoryShortage(f"{path} needs {needed} pages, {had}: finish some requests first")
                self.runner.import_pages(sequence.pages, session.layers)
                if session.tokens:
                    self.runner.import_states([sequence.state_slot], session.states)
                self.kv_cache.extend(sequence, session.tokens)
            except BaseException:
                self.kv_cache.drop(sequence)
                raise
            finally:
                self.kv_cache.release(sequence)
            return sequence, session.notes

    def logits(self, tokens: Sequence[int], take: RowsCallback, adapter: int = 0) -> Generator[bool, None, None]:
        """Scores at every position, in steps of their own: `take` is given float32 [chunk, vocab] after each, a view
        that is valid during the call. Yields True between two of these steps: others' may run there, and the text may
        be left by closing this.

        Raises ContextOverflow, RequestError for no tokens or unknown ones, MemoryShortage.
        """
        return self.texts.rows(tokens, lambda step: self.runner.run(step).logits, take, adapter)

    def hidden(self, tokens: Sequence[int], take: RowsCallback, adapter: int = 0) -> Generator[bool, None, None]:
        """What each position is before tokens are scored, float32 [chunk, width]; else as `logits`."""
        return self.texts.rows(tokens, self.runner.embed, take, adapter)

    def close(self) -> None:
        """Cancel what runs, once its step is done, and forget what sleeps; no request is taken after that."""
        with self.turn:
            self._closed = True
            for request in [*self.scheduler.running.values(), *self.scheduler.waiting]:
                self.cancel(request)
            if self.kv_cache.offload_store is not None:
                self.kv_cache.offload_store.close()
            self.metrics.close()

    def check_integrity(self) -> None:
        """Raise BackendError unless pages, sequences and requests agree. Changes nothing."""
        self.kv_cache.check_integrity()
