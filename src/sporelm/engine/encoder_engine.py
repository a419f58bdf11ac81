"""The engine of an encoder: texts in, hidden states or scores out. It has no cache, and generates nothing."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, Progress
from sporelm.engine.encoder_runner import EncoderRunner, EncoderText
from sporelm.engine.engine import Engine
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.lora_runtime import LoraRuntime, LoraWeights
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.prompt_rows import RowsCallback
from sporelm.engine.request import Request, parse_token_ids
from sporelm.engine.scheduler import Scheduler
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import Worker
from sporelm.errors import RequestError, safe_repr

MAX_TEXTS = 128  # of a step
RowsOfTextCallback = Callable[[int, NDArray[np.float32]], object]


class EncoderWorker(Worker):
    """Runs the steps of one encoder on one device; a worker's other methods raise or do nothing."""

    def __init__(self, runner: EncoderRunner, device: Backend, limits: EngineConfig) -> None:
        self.runner: Any = runner
        self.device, self.limits, self.recorder = device, limits, None

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile all programs now."""
        self.runner.prepare(progress)

    def run(self, step: Step) -> ModelOutput:
        raise self.refusal()

    def embed(self, step: Step) -> NDArray[np.float32]:
        raise self.refusal()

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        raise RequestError("adapters are for models that generate: an encoder takes none")

    def set_lora_runtime(self, lora_runtime: LoraRuntime | None) -> None:
        """Do nothing: there are no adapters."""

    def close(self) -> None:
        """Free the programs."""
        self.runner.close()

    def refusal(self) -> RequestError:
        """Return the error for requests to generate; it recommends the supported call."""
        does = "it scores texts: ask it to rerank" if self.runner.model.classifier else "it makes vectors: ask to embed"
        return RequestError(f"{self.runner.model.config.name} is an encoder, which continues no text; {does}")


class EncoderScheduler(Scheduler):
    """Refuses every request."""

    def __init__(self, engine: Engine, refusal: Callable[[], RequestError]) -> None:
        super().__init__(engine.limits, engine.kv_cache)
        self.refusal = refusal

    def check(self, request: Request, *, rolls: bool = True) -> NoReturn:
        """Raise RequestError: an encoder generates nothing."""
        raise self.refusal()


@dataclass(eq=False)
class EncoderRequest:
    """A list of texts, and the callback for each result."""

    texts: Sequence[EncoderText]
    on_result: RowsOfTextCallback
    wants_scores: bool
    num_delivered: int = 0  # texts, in their order
    error: Exception | None = None  # of the callback

    @property
    def is_done(self) -> bool:
        return self.num_delivered == len(self.texts)


class EncoderEngine(Engine):
    """Computes texts, several in a step. Threads may share an engine, and their texts share steps."""

    def __init__(self, worker: EncoderWorker, limits: EngineConfig, batch_tokens: int) -> None:
        """`batch_tokens`: of texts that share a step; a longer text has one of its own."""
        super().__init__(worker, limits)
        self.worker, self.batch_tokens = worker, batch_tokens
        self._requests: list[EncoderRequest] = []
        self.scheduler = EncoderScheduler(self, worker.refusal)
        self.metrics = self.scheduler.metrics

    @property
    def has_classifier(self) -> bool:
        """Whether the model has a head that scores texts."""
        return self.worker.runner.model.classifier is not None

    def read(
        self, texts: Sequence[EncoderText], on_result: RowsOfTextCallback, *, scores: bool = False
    ) -> Generator[bool, None, None]:
        """Compute texts, and call `on_result` with each text's index and result.

        A result is the text's hidden states, float32 [tokens, width], a view that is valid during the call; or with
        `scores` those of the model's head, float32 [labels]. Yields before each step, which texts of other callers may
        share.

        Raises ContextOverflow, RequestError for no tokens or unknown ones, before anything is computed.
        """
        for text in texts:
            self.check_text(text)
        request = EncoderRequest(texts, on_result, scores)
        with self.lock:
            self.check_open()
            self._requests.append(request)
        try:
            while True:
                yield False
                with self.lock:
                    if request.error is None and not request.is_done:
                        self.check_open()
                        self._step_with(request)
                if request.error is not None:
                    raise request.error
                if request.is_done:
                    return
        finally:
            with self.lock:
                self._requests.remove(request)

    def _step_with(self, first: EncoderRequest) -> None:
        """Run one step: the next text of this request, and as many of all requests in turn as fit beside it.

        If the step fails, the other requests are as they were. An error of a callback is raised to its own caller.
        """
        batch_items = self._select_batch(first)
        batch = [request.texts[number] for request, number in batch_items]
        start = perf_counter()
        runner = self.worker.runner
        results = runner.score(batch) if first.wants_scores else runner.embed(batch)
        # So a server can estimate the time of its largest step.
        self.scheduler.prefill_budget.observe(0, sum(len(text.tokens) for text in batch), perf_counter() - start)
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

    def _select_batch(self, first: EncoderRequest) -> list[tuple[EncoderRequest, int]]:
        """Return the texts that share a step, as (request, index): one of each request in turn, until none fits."""
        others = [each for each in self._requests if each is not first and each.wants_scores == first.wants_scores]
        candidates = [each for each in [first, *others] if each.error is None and not each.is_done]
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

    def hidden(self, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int = 0) -> Generator[bool, None, None]:
        """Compute the hidden states of a text as other engines do, in one step."""
        return self.read([EncoderText(tokens)], lambda number, rows: on_rows(rows))
