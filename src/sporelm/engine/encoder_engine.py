"""The engine of an encoder: texts in, hidden states or scores out. It has no cache, and generates nothing."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, Progress
from sporelm.engine.encoder_runner import EncoderRunner, EncoderText
from sporelm.engine.engine import EngineObserver
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.metrics import Load, Metrics
from sporelm.engine.prefill_budget import PrefillBudget
from sporelm.engine.request import RowsCallback, parse_token_ids
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RequestError, safe_repr

MAX_TEXTS = 128  # of a step
RowsOfTextCallback = Callable[[int, NDArray[np.float32]], object]


class EncoderWorker:
    """Runs the steps of one encoder on one device."""

    def __init__(self, runner: EncoderRunner, device: Backend) -> None:
        self.runner, self.device = runner, device

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile all programs now."""
        self.runner.prepare(progress)

    def close(self) -> None:
        """Free the programs."""
        self.runner.close()


@dataclass(eq=False)
class EncoderRequest:
    """A list of texts, and the callback for each result."""

    texts: Sequence[EncoderText]
    on_result: RowsOfTextCallback
    wants_scores: bool
    num_delivered: int = 0  # texts, in their order
    error: Exception | None = None  # of the callback, or of a step in this list's turn

    @property
    def is_done(self) -> bool:
        return self.num_delivered == len(self.texts)

    @property
    def is_pending(self) -> bool:
        return self.error is None and not self.is_done


class EncoderEngine:
    """Computes texts, several in a step. Threads may share an engine, and their texts share steps."""

    def __init__(self, worker: EncoderWorker, limits: EngineConfig, batch_tokens: int) -> None:
        """`batch_tokens`: of texts that share a step; a longer text has one of its own."""
        self.worker, self.limits, self.batch_tokens = worker, limits, batch_tokens
        self.max_waiting = limits.max_waiting  # lists of texts, for callers that limit them
        self.step_times = PrefillBudget()
        self.metrics = Metrics(self._load)
        self.observer: EngineObserver | None = None
        self.lock = worker.device.context.lock()
        self._requests: list[EncoderRequest] = []  # that whose turn it is first
        self._closed = False

    @property
    def has_classifier(self) -> bool:
        """Whether the model has a head that scores texts."""
        return self.worker.runner.model.classifier is not None

    @property
    def is_idle(self) -> bool:
        """Whether there is no text to compute."""
        return not any(request.is_pending for request in list(self._requests))

    @property
    def num_waiting(self) -> int:
        """Lists of texts that are not done. Any thread may call this."""
        return sum(request.is_pending for request in list(self._requests))

    def estimate_step_seconds(self) -> float:
        """Return about how long the largest step takes; 0 before any step was measured."""
        return self.step_times.estimate_seconds(self.limits.token_budget)

    def check_open(self) -> None:
        """Raise RequestError after `close`."""
        if self._closed:
            raise RequestError("this model is closed: open it again")

    def generation_error(self) -> RequestError:
        """Return the error for callers that want to generate; it recommends the supported call."""
        does = "it scores texts: ask it to rerank" if self.has_classifier else "it makes vectors: ask to embed"
        return RequestError(f"{self.worker.runner.model.config.name} is an encoder, which continues no text; {does}")

    def read(
        self, texts: Sequence[EncoderText], on_result: RowsOfTextCallback, *, scores: bool = False
    ) -> Generator[None, None, None]:
        """Compute texts, while the caller steps the engine after each yield.

        `on_result` is called with each text's index and result.

        A result is the text's hidden states, float32 [tokens, width], a view that is valid during the call; or with
        `scores` those of the model's head, float32 [labels].

        Raises ContextOverflow, RequestError for no tokens or unknown ones, before anything is computed.
        """
        for text in texts:
            self.check_text(text)
        request = EncoderRequest(texts, on_result, scores)
        with self.lock:
            self.check_open()
            self._requests.append(request)
        try:
            yield  # also without texts
            while request.is_pending:
                self.check_open()
                yield
        finally:
            with self.lock:
                self._requests.remove(request)
        if request.error is not None:
            raise request.error

    def step(self) -> list[EncoderRequest]:
        """Run one step, of the list whose turn it is and of others; return the lists that advanced.

        If the step fails, that list ends with the error, and the others stay as they were.
        """
        with self.lock:
            first = next((request for request in self._requests if request.is_pending), None)
            if first is None or self._closed:
                return []
            self._requests.remove(first)
            self._requests.append(first)
            try:
                return self._step_with(first)
            except Exception as error:
                first.error = error
                return [first]

    def _step_with(self, first: EncoderRequest) -> list[EncoderRequest]:
        """Run one step: the next text of this request, and as many of all requests in turn as fit beside it.

        An error of a callback is raised to its own caller.
        """
        batch_items = self._select_batch(first)
        batch = [request.texts[number] for request, number in batch_items]
        start = perf_counter()
        runner = self.worker.runner
        results = runner.score(batch) if first.wants_scores else runner.embed(batch)
        # So a server can estimate the time of its largest step.
        self.step_times.observe(0, sum(len(text.tokens) for text in batch), perf_counter() - start)
        for (request, number), result in zip(batch_items, results, strict=True):
            try:
                if request.error is None:
                    request.on_result(number, result)
            except Exception as reason:
                request.error = reason
            request.num_delivered = number + 1
        if self.observer is not None:
            step = Step([ScheduledSequence(0, text.tokens, 0, (), 0) for text in batch], [])
            self.observer.on_step(step, (start, start, *[perf_counter()] * 3))
        return list({id(request): request for request, _ in batch_items}.values())

    def _select_batch(self, first: EncoderRequest) -> list[tuple[EncoderRequest, int]]:
        """Return the texts that share a step, as (request, index): one of each request in turn, until none fits."""
        others = [each for each in self._requests if each is not first and each.wants_scores == first.wants_scores]
        candidates = [each for each in [first, *others] if each.is_pending]
        turns = deque((each, each.num_delivered) for each in candidates)
        batch_items, num_tokens = list[tuple[EncoderRequest, int]](), 0
        while turns and len(batch_items) < MAX_TEXTS:
            request, number = turns.popleft()
            length = len(request.texts[number].tokens)
            if batch_items and num_tokens + length > self.batch_tokens:
                continue
            batch_items.append((request, number))
            num_tokens += length
            if number + 1 < len(request.texts):
                turns.append((request, number + 1))
        return batch_items

    def check_text(self, text: EncoderText) -> None:
        """Raise ContextOverflow or RequestError for a text that the model cannot take."""
        ids = parse_token_ids("the text", text.tokens)
        if not ids:
            raise RequestError("the text has no tokens: give at least one")
        self.limits.check_prompt(len(ids))
        lowest, highest = min(ids), max(ids)
        if lowest < 0 or highest >= self.limits.vocab:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the text holds token {safe_repr(wrong)}: the model knows 0 to {self.limits.vocab - 1}")

    def hidden(self, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int = 0) -> Generator[None, None, None]:
        """Compute the hidden states of a text as other engines do, in one step."""
        return self.read([EncoderText(tokens)], lambda number, rows: on_rows(rows))

    def close(self) -> None:
        """End all lists after the current step. The engine stays closed."""
        with self.lock:
            self._closed = True
            self.metrics.close()

    def _load(self) -> Load:
        """Return how busy the engine is. Any thread may call this."""
        return Load(0, self.num_waiting, self.limits.num_pages, 0, 0, 0, 0)
