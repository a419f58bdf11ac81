"""The engine: requests in, tokens out, step by step. It knows token ids only."""

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.context import Context
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.image_encoder import ImageEncoder
from sporelm.engine.kv import KvCache, KvSequence, OffloadStore
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.kv.session_io import CacheLayout, SessionData, check_replaceable, read_session, write_session
from sporelm.engine.lora_runtime import LoraRuntime
from sporelm.engine.model_output import ModelOutput, PreviousTokens
from sporelm.engine.overlap import Overlap
from sporelm.engine.request import FinishReason, OutputKind, Request, RowsCallback
from sporelm.engine.sampling import Sampler
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.scheduler import Scheduler, StepOutput
from sporelm.engine.speculative import Speculation
from sporelm.engine.step import Step
from sporelm.errors import BackendError, MemoryShortage, RankLost, RequestError

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_TOWER_SECONDS = 0.05  # of a vision tower between two steps
MAX_LOSSES = 3  # of ranks in steps of a request, without a new token of it between them
TOWER_SHARE = 0.5  # of the duration of a step, at most, if streams wait meanwhile


class StepRunner(Protocol):
    """Computes steps: a worker, or a test's stand-in."""

    @property
    def kv(self) -> str: ...  # the data type of pages, a value of --kv
    def run(self, step: Step, previous: PreviousTokens | None = None) -> ModelOutput: ...
    def embed(self, step: Step) -> NDArray[np.float32]: ...
    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None: ...
    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]: ...
    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None: ...
    def set_lora_runtime(self, lora_runtime: LoraRuntime | None) -> None: ...


@runtime_checkable
class RestartableRunner(Protocol):
    """A runner of several ranks, which raises RankLost when one of them is lost."""

    @property
    def lost(self) -> str | None:
        """The reason; None if all ranks run."""

    def restart(self) -> None:
        """Start all ranks again, with empty caches. Raises SporeError; it may be tried again."""


class EngineObserver(Protocol):
    """Is told about requests and steps, in the thread that runs the engine."""

    def on_add(self, request: Request) -> None: ...
    def on_end(self, request: Request) -> None: ...
    def on_step(self, step: Step, moments: Sequence[float]) -> None:
        """`moments`, of perf_counter: the step began, was scheduled, was computed, was sampled, was committed."""


class Engine:
    """Continues requests in shared steps. Threads may share an engine: each call holds its lock."""

    def __init__(
        self,
        worker: StepRunner,
        limits: EngineConfig,
        speculation: Speculation | None = None,
        offload_store: OffloadStore | None = None,
        device_sampler: DeviceSampler | None = None,
        context: Context | None = None,
    ) -> None:
        """Without an offload store, evicted sequences are recomputed.

        device_sampler   samples on an asynchronous device: the next step is launched while one runs (`overlap`).
                         Speculation and recordings need one step after the other, and the host's sampler.
        context          of the worker's back-end: current in the thread that is inside a call, so during each step
        """
        self.runner = worker
        self.limits = limits
        self.kv_cache = KvCache(limits.num_pages, limits.num_states, limits.state_interval, offload_store)
        self.scheduler = Scheduler(limits, self.kv_cache, speculation)
        self.metrics = self.scheduler.metrics
        self.speculation = speculation
        self.sampler = Sampler()
        self.observer: EngineObserver | None = None
        self._request_ids = count(1)
        self.last_step: Step | None = None  # that was launched
        self.sampling_step: Step | None = None  # whose sampling changes the states of requests; None once committed
        self._closed = False
        self.lock = (context or Context("engine")).lock()
        self.image_encoder: ImageEncoder | None = None
        self._step_seconds = 0.0  # of the last step, images left out
        self._failed: list[StepOutput] = []  # outputs of requests that failed outside of steps
        self._losses: dict[int, tuple[int, int]] = {}  # by request id: its generated tokens then, losses since
        self._lost_sequences: set[int] = set()  # ids of sequences that lost their content with a rank
        self.overlap: Overlap | None = None
        if device_sampler is not None and speculation is None:
            self.overlap = Overlap(self, device_sampler)

    def use_image_encoder(self, encoder: ImageEncoder, *, attends_both_ways: bool) -> None:
        """Take images from now on; `attends_both_ways`: the rows of an image attend to all of it."""
        self.image_encoder = self.scheduler.image_encoder = encoder
        self.scheduler.attends_images_both_ways = attends_both_ways

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return self.scheduler.is_idle

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step, or to be recomputed."""
        return len(self.scheduler.waiting)

    @property
    def max_waiting(self) -> int:
        """How many requests may wait."""
        return self.scheduler.waiting.limit

    @max_waiting.setter
    def max_waiting(self, limit: int) -> None:
        self.scheduler.waiting.limit = limit

    def estimate_step_seconds(self) -> float:
        """Return about how long the largest step takes; 0 before any step was measured."""
        return self.scheduler.prefill_budget.estimate_seconds(self.limits.token_budget)

    def add(self, request: Request) -> Request:
        """Queue a request and assign its id. Raises ContextOverflow, QueueFull, RequestError."""
        with self.lock:
            self.check_open()
            request.id = next(self._request_ids)
            self.scheduler.add(request)
            if request.output == "tokens" and self.sampler.needs_request(request.sampling, request.constraint):
                self._add_to_sampler(request)
            if self.observer is not None:
                self.observer.on_add(request)
        return request

    def _add_to_sampler(self, request: Request) -> None:
        stop_ids = sorted(request.stop_ids)
        vocab, constraint = self.limits.vocab, request.constraint
        try:
            self.sampler.add(request.id, request.sampling, request.vocabulary_ids, stop_ids, vocab, constraint)
        except BaseException:  # without its sampler state it would be continued greedily
            self.scheduler.end(request, "error")
            raise

    def check_open(self) -> None:
        """Raise RequestError after `close`."""
        if self._closed:
            raise RequestError("this model is closed: open it again")

    def step(self) -> list[StepOutput]:
        """Run one step; return an output for each new token and each request that has ended.

        If the device has too little memory for a step, the next ones are shorter. If a step is interrupted or the
        back-end fails, the next one goes on as if this one had not been; only requests for which tokens were being
        sampled may fail. If all requests of a failed step want rows, an error other than too little memory ends them,
        and their callers raise it. If a rank is lost, all ranks are started again, and the requests are recomputed from
        their tokens.
        """
        with self.lock:
            if self.scheduler.is_idle:
                return [] if self.overlap is None else self.overlap.take_outputs()
            try:
                if self.image_encoder is not None:
                    self._encode_images(self.image_encoder)
                began = perf_counter()
                outputs = self._step() if self.overlap is None else self.overlap.step()
                self._step_seconds = perf_counter() - began
                if self._failed:
                    outputs, self._failed = self._failed + outputs, []
                return outputs
            except BaseException as failure:
                self._recover(failure)
                if isinstance(failure, RankLost) and isinstance(self.runner, RestartableRunner):
                    return self._restart_ranks(self.runner, failure)
                if isinstance(failure, MemoryShortage) and self._shorten_steps(failure):
                    return [] if self.overlap is None else self.overlap.take_outputs()
                raise

    def _step(self) -> list[StepOutput]:
        start = perf_counter()
        step = self.scheduler.next_step()
        if not step.sequences:  # requests wait for their images
            return []
        if not step.sequences[0].is_sampled:
            return self.step_rows(step, start)
        scheduled = perf_counter()
        self.last_step = step
        model_output = self.runner.run(step)
        self.sampler.read(model_output, step)  # an asynchronous device computes until then, or fails
        computed = perf_counter()
        self.sampling_step = step
        sampled = self.sampler.sample(model_output, step)
        sampled_time = perf_counter()
        num_tokens = step.num_tokens
        self.observe_time(step, num_tokens, sampled.tokens, computed - scheduled)
        outputs = self.scheduler.commit(step, sampled)
        if not step.sequences[-1].is_sampled:
            outputs += self.scheduler.deliver_rows(step, model_output.logits)
        self.sampling_step = None
        self.record_step(step, num_tokens, (start, scheduled, computed, sampled_time, perf_counter()))
        self.forget_ended(outputs)
        return outputs

    def _encode_images(self, encoder: ImageEncoder) -> None:
        """Work on the images that requests wait for: for a share of a step's duration, or alone, MAX_TOWER_SECONDS.

        If the tower fails, the requests that wait for that image end with the error. Changes requests.
        """
        if not encoder.has_work:
            return
        seconds = MAX_TOWER_SECONDS
        if self.scheduler.running:
            seconds = min(seconds, TOWER_SHARE * self._step_seconds)
        failure = encoder.advance(seconds)
        if failure is not None:
            log.warning("the vision tower failed on an image", exc_info=failure.error)
            for request in failure.requests:
                self._fail_image(request, BackendError(f"image: the vision tower failed ({failure.error})"))

    def _fail_image(self, request: Request, error: Exception) -> None:
        """End a request whose image cannot be computed. Changes the request."""
        output = self.scheduler.fail_rows(request, error)
        self.forget_ended([output])
        self._failed.append(output)

    def _shorten_steps(self, shortage: MemoryShortage) -> bool:
        """Halve the steps after one for which the device had too little memory; False if they have one token.

        The requests of the step were rolled back, and go on in shorter steps.
        """
        num_tokens = min(self.scheduler.token_budget, self.last_step.num_tokens if self.last_step is not None else 0)
        if num_tokens <= 1:
            return False
        self.scheduler.token_budget = num_tokens // 2
        log.warning(
            "a step of %d tokens ran out of memory (%s): steps have at most %d from now on",
            num_tokens,
            shortage,
            self.scheduler.token_budget,
        )
        for request in [*self.scheduler.running.values(), *self.scheduler.waiting]:
            if not self.scheduler.fits_images(request):
                self._fail_image(request, MemoryShortage(self.scheduler.explain_long_image(request)))
        return True

    def _restart_ranks(self, runner: RestartableRunner, loss: RankLost) -> list[StepOutput]:
        """Start all ranks again; the requests wait and are recomputed. Return an output for each request that fails:
        all do if the ranks cannot be started, and the next request tries that again."""
        began = perf_counter()
        losses: dict[int, tuple[int, int]] = {}
        for request in self.scheduler.running.values():
            num_generated, count = self._losses.get(request.id, (-1, 0))
            is_stuck = num_generated == request.num_generated
            losses[request.id] = request.num_generated, count + 1 if is_stuck else 1
        self._losses = losses
        self._recompute_all()
        error, failing = loss, [each for each in self.scheduler.waiting if losses.get(each.id, (0, 0))[1] >= MAX_LOSSES]
        try:
            runner.restart()
        except Exception as reason:
            error = RankLost(f"{loss}; the ranks could not be started again ({reason}). Try again.")
            failing = list(self.scheduler.waiting)
        else:
            log.warning("%s: the ranks were started again in %.1f s", str(loss), perf_counter() - began)
        outputs = [self.scheduler.fail_rows(request, error) for request in failing]
        self.forget_ended(outputs)
        return outputs

    def _recompute_all(self) -> None:
        """Empty the cache, whose memory was lost with a rank, and let all requests wait. Changes the cache."""
        known = self.kv_cache.sequences
        self._lost_sequences = {number for number in self._lost_sequences if number in known}
        self._lost_sequences |= {number for number, sequence in known.items() if sequence.tokens}
        self.scheduler.recompute_all()

    def _restart_lost_ranks(self) -> None:
        """Start all ranks again, if one was lost while no step ran. Changes the cache. Raises RankLost if they cannot
        be started; the next step tries it again."""
        runner = self.runner
        if not isinstance(runner, RestartableRunner) or runner.lost is None:
            return
        loss, began = runner.lost, perf_counter()
        self._recompute_all()
        try:
            runner.restart()
        except Exception as reason:
            raise RankLost(f"{loss}; the ranks could not be started again ({reason}). Try again.") from reason
        log.warning("%s: the ranks were started again in %.1f s", loss, perf_counter() - began)

    def _on_ranks(self, call: Callable[[], T]) -> T:
        """Return the result of a call outside of steps. Lost ranks are started again before it, and once after it."""
        self._restart_lost_ranks()
        try:
            return call()
        except RankLost:
            if not isinstance(self.runner, RestartableRunner) or self.runner.lost is None:
                raise
            self._restart_lost_ranks()
            return call()

    def step_rows(self, step: Step, start: float) -> list[StepOutput]:
        """Run a step whose requests all want rows, of logits or of hidden states."""
        requests = [self.scheduler.running[scheduled.request_id] for scheduled in step.sequences]
        scheduled = perf_counter()
        self.last_step = step
        try:
            rows = self.runner.embed(step) if requests[0].output == "hidden" else self.runner.run(step).logits
        except Exception as error:
            if isinstance(error, RankLost) or (isinstance(error, MemoryShortage) and step.num_tokens > 1):
                raise  # after a restart, or in shorter steps, they may do
            self._recover(error)
            outputs = [self.scheduler.fail_rows(request, error) for request in requests]
            self.forget_ended(outputs)
            return outputs
        computed = perf_counter()
        outputs = self.scheduler.deliver_rows(step, rows)
        self.record_step(step, step.num_tokens, (start, scheduled, computed, computed, perf_counter()))
        self.forget_ended(outputs)
        return outputs

    def record_step(self, step: Step, num_tokens: int, moments: tuple[float, ...]) -> None:
        """Count a step, and tell the observer."""
        self.metrics.record_step(num_tokens, *moments)
        if self.observer is not None:
            self.observer.on_step(step, moments)

    def forget_ended(self, outputs: Sequence[StepOutput]) -> None:
        """Drop the sampler states and drafts of requests that have ended."""
        for output in outputs:
            if output.finish_reason:
                self._forget(output.request)

    def _recover(self, failure: BaseException) -> None:
        """Roll back after a step that has failed, or was interrupted.

        Its copies may not have been made, and random generators and grammars may be ahead of the output. Keep full
        pages only, which the step did not touch. End the requests whose sampling began, and requests that had finished.
        """
        reason: FinishReason = "error" if isinstance(failure, Exception) else "cancelled"
        step, self.sampling_step = self.sampling_step, None
        sampling_ids = {
            scheduled.request_id
            for scheduled in (step.sequences if step is not None else ())
            if scheduled.num_outputs and scheduled.is_sampled
        }
        if self.overlap is not None:
            self.overlap.forget()
        self.kv_cache.pop_state_copies()  # their sequences are rolled back
        for request in list(self.scheduler.running.values()):
            if request.sequence is not None:
                self.kv_cache.rollback_step(request.sequence)
            if request.finish_reason is not None:
                self.scheduler.end(request, request.finish_reason)
                self._forget(request)
            elif request.id in sampling_ids and request.id in self.sampler.states:
                request.error = "a step was interrupted while its next token was chosen"
                self.scheduler.end(request, reason)
                self._forget(request)
            else:
                self.scheduler.recompute_last_page(request)

    def run(self, requests: Sequence[Request]) -> None:
        """Step until all of these have ended; cancel them if interrupted."""
        try:
            while any(request.finish_reason is None for request in requests):
                self.step()
        finally:
            for request in requests:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request now, if it was added and has not ended. Changes the KV cache."""
        with self.lock:
            if request.finish_reason is None:
                self.scheduler.end(request, "cancelled")
                self._forget(request)
                if self.overlap is not None and self.is_idle:
                    self.overlap.forget()

    def observe_time(
        self, step: Step, num_tokens: int, sampled_tokens: Sequence[Sequence[int]], seconds: float
    ) -> None:
        """Note how long a step took, for the prefill budget and for speculation."""
        num_sequences = len(step.sequences)
        if num_tokens == num_sequences == len(sampled_tokens):
            num_decoding, num_prompt_tokens = num_sequences, 0
        else:
            counts = [
                len(scheduled.tokens)
                for scheduled in step.sequences
                if scheduled.is_sampled and scheduled.num_outputs == len(scheduled.tokens)
            ]
            num_decoding, num_prompt_tokens = len(counts), num_tokens - sum(counts)
        self.scheduler.prefill_budget.observe(num_decoding, num_prompt_tokens, seconds)
        if self.speculation is not None and num_decoding == num_sequences:
            self.speculation.observe_step(step, sampled_tokens, seconds)

    def _forget(self, request: Request) -> None:
        """Drop the sampler state and the drafts of a request that has ended."""
        if self.observer is not None:
            self.observer.on_end(request)
        if request.output != "tokens":
            return
        self.sampler.drop(request.id)
        if self.speculation is not None:
            self.speculation.end(request)

    def _drain(self) -> None:
        """Commit the step in flight, if there is one; the next call of `step` returns its outputs. Changes requests."""
        if self.overlap is None:
            return
        try:
            self.overlap.drain()
        except BaseException as failure:
            self._recover(failure)
            raise

    def uses_adapter(self, adapter_id: int) -> bool:
        """Return whether any work that waits or runs has this adapter."""
        with self.lock:
            return self.scheduler.uses_adapter(adapter_id)

    def use_adapters(
        self,
        identities: Mapping[int, str],
        lora_runtime: LoraRuntime | None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """Use these adapters from the next step on; `identities` and `names` by adapter id.

        Raises RequestError while a request uses an adapter that would be unloaded.
        """
        with self.lock:
            self.check_open()
            for adapter_id in self.scheduler.adapter_identities.keys() - identities.keys() - {0}:
                if self.scheduler.uses_adapter(adapter_id):
                    raise RequestError("requests still use this adapter: wait for them, or cancel them first")
            self._drain()
            self._on_ranks(lambda: self.runner.set_lora_runtime(lora_runtime))
            self.scheduler.adapter_identities = {0: "", **identities}
            self.scheduler.adapter_names = names or {}

    def sequence(self, cache_salt: str = "") -> KvSequence:
        """Return an empty sequence, for one request after the other; `drop` it at last.

        Its content is shared with sequences of the same salt only.
        """
        with self.lock:
            self.check_open()
            return self.kv_cache.new_sequence(cache_salt)

    def fork(self, sequence: KvSequence) -> KvSequence:
        """Return a sequence with the content of this one, in shared pages."""
        with self.lock:
            self.check_open()
            self._drain()
            return self.kv_cache.fork(sequence)

    def drop(self, sequence: KvSequence) -> None:
        """Forget a sequence. Raises RequestError while a request uses it."""
        with self.lock:
            if sequence.is_in_use:
                raise RequestError("a request still uses this sequence: cancel it first")
            self.kv_cache.drop(sequence)

    def save_session(
        self,
        sequence: KvSequence,
        path: Path,
        model: str,
        notes: dict[str, Any],
        attachments: Sequence[bytes] = (),
    ) -> int:
        """Write the content of a sequence, `notes` and `attachments` to a session file; return the file's bytes.

        `model` is the model's identity: only this model can load the file. Raises RequestError while a request uses
        the sequence, if the file cannot be written, or if another file is at the path, and RankLost if the content was
        lost with a rank.
        """
        check_replaceable(path)
        with self.lock:
            self.check_open()
            if sequence.is_in_use:
                raise RequestError("a request still uses this sequence: wait for it, or cancel it first")
            session = self._on_ranks(lambda: self._export_session(sequence))
        adapter = sequence.page_hashes.adapter
        session = session._replace(notes=notes, adapter=adapter, attachments=attachments)
        return write_session(path, session, model).nbytes

    def _export_session(self, sequence: KvSequence) -> SessionData:
        """Return a copy of a sequence's content, or of its offloaded content, if that is more."""
        store = self.kv_cache.offload_store
        if store is not None and len(tokens := store.tokens_of(sequence)) > sequence.length:
            offloaded = store.load(sequence)
            if offloaded is not None:
                return offloaded._replace(tokens=list(tokens))
        if not sequence.tokens and sequence.id in self._lost_sequences:
            raise RankLost("session: its content was lost with a rank. Continue it once, which computes it again.")
        layers = self.runner.export_pages(sequence.pages[: count_pages(sequence.length)])
        states = self.runner.export_states([sequence.state_slot] if sequence.tokens else [])
        return SessionData(list(sequence.tokens), layers, {}, states=states, kv=self.runner.kv)

    def load_session(
        self, path: Path, model: str, cache_salt: str = "", *, legacy_models: Collection[str] = ()
    ) -> tuple[KvSequence, dict[str, Any]]:
        """Return a sequence with the content of a session file, and the file's notes. May evict idle sequences.

        `legacy_models`: identities by which earlier versions may have known the model. Raises ModelNotFound,
        ModelFileError, RequestError, and MemoryShortage if there are too few pages.
        """
        with self.lock:
            self.check_open()
            layout = self._on_ranks(
                lambda: CacheLayout(self.runner.export_pages([]), self.runner.export_states([]), self.runner.kv)
            )
        models = [model, *legacy_models]
        session = read_session(path, models, layout, self.limits.max_context, self.limits.vocab)  # without the lock
        with self.lock:
            self.check_open()
            if session.adapter not in self.scheduler.adapter_identities.values():
                adapter = f"an adapter that is not loaded, known by {session.adapter[:12]}"
                raise RequestError(f"{path} was made with {adapter}: load the adapter first")
            return self._on_ranks(lambda: self._import_session(session, path, cache_salt)), session.notes

    def _import_session(self, session: SessionData, path: Path, cache_salt: str) -> KvSequence:
        """Return a new sequence with the content of a session. May evict idle sequences."""
        sequence = self.kv_cache.new_sequence(cache_salt, session.adapter)
        self.kv_cache.acquire(sequence)  # so that it is not evicted itself
        try:
            if not self.kv_cache.reserve(sequence, len(session.tokens), []):
                num_pages = count_pages(len(session.tokens))
                shortage = self.kv_cache.describe_shortage(sequence)
                raise MemoryShortage(f"{path} needs {num_pages} pages, {shortage}: finish some requests first")
            self.runner.import_pages(sequence.pages, session.layers)
            if session.tokens:
                self.runner.import_states([sequence.state_slot], session.states)
            self.kv_cache.extend(sequence, session.tokens)
        except BaseException:
            self.kv_cache.drop(sequence)
            raise
        finally:
            self.kv_cache.release(sequence)
        return sequence

    def logits(self, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int = 0) -> Generator[None, None, None]:
        """Compute the logits at every position of a prompt, while the caller steps the engine after each yield.

        `on_rows` is called with the rows of a step, float32 [chunk, vocab], a view that is valid during the call.
        Closing the generator cancels the prompt. Raises ContextOverflow, RequestError for no tokens or unknown ones,
        and what `on_rows` or a step of such prompts raised.
        """
        return self._stream_rows("logits", tokens, on_rows, adapter_id)

    def hidden(self, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int = 0) -> Generator[None, None, None]:
        """Compute the last hidden state at every position, float32 [chunk, width]; else as `logits`."""
        return self._stream_rows("hidden", tokens, on_rows, adapter_id)

    def _stream_rows(
        self, output: OutputKind, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int
    ) -> Generator[None, None, None]:
        request = self.add(Request(tokens, adapter_id=adapter_id, output=output, on_rows=on_rows))
        try:
            while request.finish_reason is None:
                yield
        finally:
            self.cancel(request)
        if request.exception is not None:
            raise request.exception
        if request.finish_reason != "stop":
            self.check_open()
            raise RequestError("this prompt was cancelled")

    def close(self) -> None:
        """Cancel all requests after the current step, and drop offloaded sequences. The engine stays closed."""
        with self.lock:
            self._closed = True
            for request in [*self.scheduler.running.values(), *self.scheduler.waiting]:
                self.cancel(request)
            if self.overlap is not None:
                self.overlap.close()
            if self.image_encoder is not None:
                self.image_encoder.close()
            if self.kv_cache.offload_store is not None:
                self.kv_cache.offload_store.close()
            self.metrics.close()

    def check_integrity(self) -> None:
        """Raise BackendError unless pages, sequences and requests agree. Changes nothing."""
        self.kv_cache.check_integrity()
