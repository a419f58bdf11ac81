"""The engine of an encoder: texts in, rows or scores out. It keeps nothing from step to step, and generates nothing."""

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
from sporelm.engine.prompt_rows import RowsCallback
from sporelm.engine.request import Request, token_ids
from sporelm.engine.runner import ModelOutput
from sporelm.engine.scheduler import Scheduler
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import Worker
from sporelm.errors import RequestError, shown

MOST_TEXTS = 128  # of a step
RowsOfTextCallback = Callable[[int, NDArray[np.float32]], object]


class EncoderWorker(Worker):
    """Runs the steps of one encoder on one device. What engines ask of workers beside that is nothing here."""

    def __init__(self, runner: EncoderRunner, device: Backend, limits: EngineConfig) -> None:
        self.runner: Any = runner
        self.device, self.limits, self.recorder = device, limits, None

    def prepare(self, progress: Progress | None = None) -> None:
        """Make all programs now."""
        self.runner.prepare(progress)

    def run(self, step: Step) -> ModelOutput:
        raise self.refusal()

    def embed(self, step: Step) -> NDArray[np.float32]:
        raise self.refusal()

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        raise RequestError("adapters are for models that generate: an encoder takes none")

    def use(self, adapted: LoraRuntime | None) -> None:
        """Nothing: there are no adapters."""

    def close(self) -> None:
        """Free the programs."""
        self.runner.close()

    def refusal(self) -> RequestError:
        """Of what asks for tokens; it says what works."""
        does = "it scores texts: ask it to rerank" if self.runner.model.classifier else "it makes vectors: ask to embed"
        return RequestError(f"{self.runner.model.config.name} is an encoder, which continues no text; {does}")


class EncoderScheduler(Scheduler):
    """Takes no request."""

    def __init__(self, engine: Engine, refusal: Callable[[], RequestError]) -> None:
        super().__init__(engine.limits, engine.kv_cache)
        self.refusal = refusal

    def check(self, request: Request, *, rolls: bool = True) -> NoReturn:
        """Raise RequestError: an encoder continues nothing."""
        raise self.refusal()


@dataclass(eq=False)
class EncoderRequest:
    """A list of texts, and what is done with what becomes of each."""

    texts: Sequence[EncoderText]
    take: RowsOfTextCallback
    scores: bool
    taken: int = 0  # of them, in their order
    failure: Exception | None = None  # of what takes them

    @property
    def done(self) -> bool:
        return self.taken == len(self.texts)


class EncoderEngine(Engine):
    """Reads texts, several in a step. Threads may share one, and their texts share steps."""

    def __init__(self, worker: EncoderWorker, limits: EngineConfig, together: int) -> None:
        """`together`: tokens of texts that share a step; a longer text has one of its own."""
        super().__init__(worker, limits)
        self.worker, self.together = worker, together
        self._line: list[EncoderRequest] = []
        self.scheduler = EncoderScheduler(self, worker.refusal)
        self.metrics = self.scheduler.metrics

    @property
    def scores(self) -> bool:
        """Whether the model has a head that scores texts."""
        return self.worker.runner.model.classifier is not None

    def read(
        self, texts: Sequence[EncoderText], take: RowsOfTextCallback, *, scores: bool = False
    ) -> Generator[bool, None, None]:
        """What the model makes of texts: `take` is given a text's number and its rows, float32 [tokens, width], a view
        that is valid during the call; or the scores of the model's head, float32 [labels]. Yields before each step:
        lists of texts that others begin meanwhile share it.

        Raises ContextOverflow, RequestError for no tokens or unknown ones, before anything is computed.
        """
        for text in texts:
            self.check_text(text)
        reading = EncoderRequest(texts, take, scores)
        with self.turn:
            self.check_open()
            self._line.append(reading)
        try:
            while True:
                yield False
                with self.turn:
                    if reading.failure is None and not reading.done:
                        self.check_open()
                        self._step_with(reading)
                if reading.failure is not None:
                    raise reading.failure
                if reading.done:
                    return
        finally:
            with self.turn:
                self._line.remove(reading)

    def _step_with(self, first: EncoderRequest) -> None:
        """One step: the next text of this list, and of all lists in turn as many as fit beside it. If it fails, the
        other lists are as they were; one whose taker fails hears of that itself."""
        chosen = self._chosen(first)
        batch = [reading.texts[number] for reading, number in chosen]
        began = perf_counter()
        found = self.worker.runner.score(batch) if first.scores else self.worker.runner.embed(batch)
        # So a server knows how long its largest step may take before it is taken for dead.
        self.scheduler.prefill_budget.observe(0, sum(len(text.tokens) for text in batch), perf_counter() - began)
        for (reading, number), made in zip(chosen, found, strict=True):
            try:
                if reading.failure is None:
                    reading.take(number, made)
            except Exception as reason:
                reading.failure = reason
            reading.taken = number + 1
        if self.observer is not None:
            step = Step([ScheduledSequence(0, text.tokens, 0, (), 0) for text in batch], [])
            self.observer.stepped(step, (began, began, *[perf_counter()] * 3))

    def _chosen(self, first: EncoderRequest) -> list[tuple[EncoderRequest, int]]:
        """The texts that share a step, as (list, number): one of each list in turn, until no list's next one fits."""
        others = [each for each in self._line if each is not first and each.scores == first.scores]
        turns = deque((each, each.taken) for each in [first, *others] if each.failure is None and not each.done)
        chosen, tokens = list[tuple[EncoderRequest, int]](), 0
        while turns and len(chosen) < MOST_TEXTS:
            reading, number = turns.popleft()
            length = len(reading.texts[number].tokens)
            if chosen and tokens + length > self.together:
                continue
            chosen.append((reading, number))
            tokens += length
            if number + 1 < len(reading.texts):
                turns.append((reading, number + 1))
        return chosen

    def check_text(self, text: EncoderText) -> None:
        """Raise ContextOverflow or RequestError for a text that the model cannot take."""
        ids = token_ids("the text", text.tokens)
        if not ids:
            raise RequestError("the text has no tokens: give at least one")
        self.limits.check_prompt(len(ids))
        lowest, highest = min(ids), max(ids)
        if lowest < 0 or highest >= self.limits.vocab:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"the text holds token {shown(wrong)}: the model knows 0 to {self.limits.vocab - 1}")

    def hidden(self, tokens: Sequence[int], take: RowsCallback, adapter: int = 0) -> Generator[bool, None, None]:
        """As that of other engines, in one step."""
        return self.read([EncoderText(tokens)], lambda number, rows: take(rows))
