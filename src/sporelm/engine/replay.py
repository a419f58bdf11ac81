"""Replays a recording on a worker that has computed nothing yet, and compares what comes out, step by step.

A recording may come from anywhere: whatever of it would reach memory is checked first.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import numpy as np

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.recording import MARK, READABLE, VERSION, checksums, sampling_from_json
from sporelm.engine.runner import ModelOutput
from sporelm.engine.sampling import Sampler
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import Worker
from sporelm.errors import RequestError, SporeError, shown

LONGEST_LINE = 64 << 20  # characters
WHOLE = (1 << 31) - 1


@dataclass
class ReplayResult:
    """What came of a replay."""

    steps: int = 0
    tokens: int = 0  # computed
    said: int = 0  # tokens that were chosen, and compared
    seconds: float = 0.0
    recorded_seconds: float = 0.0
    compared_logits: bool = True
    difference: str | None = None  # the first one
    stopped: str | None = None  # why it went no further
    cut: bool = False  # the file ends within a line


class Recording:
    """A recording that is read."""

    def __init__(self, path: Path) -> None:
        """Read what it says of itself. Raises RequestError for what is none."""
        self.path = path
        self.cut = False
        try:
            with path.open(encoding="utf-8") as file:
                about = _parsed(file.readline(LONGEST_LINE))
        except (OSError, UnicodeDecodeError) as reason:
            raise RequestError(f"{path} cannot be read: {getattr(reason, 'strerror', None) or reason}") from None
        if about is None or MARK not in about:
            raise RequestError(f"{path} is no recording: it does not begin with {MARK!r}")
        if about[MARK] not in READABLE:
            raise RequestError(f"{path} is a recording of version {about[MARK]!r:.20}; this program knows {VERSION}")
        self.about = about

    @property
    def limits(self) -> EngineConfig:
        """Those of the engine that was recorded. Raises RequestError if they are no limits."""
        try:
            return EngineConfig(**self.about["limits"])
        except (KeyError, TypeError):
            raise RequestError(f"{self.path} does not say the limits of its engine: it is damaged") from None

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """What was recorded, with the numbers of the lines; up to the last whole line."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.readline(LONGEST_LINE)
            yield from self._rest(file)

    def _rest(self, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 1
        while text := file.readline(LONGEST_LINE):
            number += 1
            if not text.endswith("\n"):
                self.cut = True
                return
            values = _parsed(text)
            if values is None:
                raise RequestError(f"{self.path}: line {number} is no JSON object: the recording is damaged")
            yield number, values


class Replay:
    """The replay of one recording."""

    def __init__(self, recording: Recording, worker: Worker, *, compare_logits: bool = True) -> None:
        """`compare_logits`: bit by bit, as computed by the same kernels; else the greatest and the choices only."""
        self.recording, self.worker, self.limits = recording, worker, worker.limits
        self.result = ReplayResult(compared_logits=compare_logits)
        self.sampler = Sampler()
        self.unknown: set[int] = set()  # requests whose choices cannot be repeated: their grammar is not in the file
        self.last: tuple[Step, ModelOutput] | None = None  # from which no token was chosen yet

    def run(self) -> ReplayResult:
        """Repeat all of it, up to the first difference. Raises RequestError for a damaged recording."""
        for number, line in self.recording.lines():
            try:
                self._take(line)
            except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as reason:
                raise RequestError(f"{self.recording.path}: line {number} is damaged: {in_words(reason)}") from None
            except SporeError as reason:
                colon = "" if str(reason).startswith("is damaged") else ":"
                raise RequestError(f"{self.recording.path}: line {number}{colon} {reason}") from None
            if self.result.difference or self.result.stopped:
                break
        self.result.cut = self.recording.cut
        return self.result

    def _take(self, line: Mapping[str, Any]) -> None:
        if "step" in line:
            self._step(Step.from_json(line["step"]), line)
        elif "embed" in line:
            self._embed(Step.from_json(line["embed"]), line)
        elif "said" in line:
            self._compare_said(line["said"])
        elif "add" in line:
            self._add(line)
        elif "drop" in line:
            self.sampler.drop(line["drop"])
            self.unknown.discard(line["drop"])
        elif "imported" in line:
            pages = f"{len(line['imported'])} pages were filled from a file (a conversation woke)"
            self.result.stopped = f"after step {self.result.steps} {pages}, which a recording does not hold"
        elif "full" in line:
            self.result.stopped = f"the recording was full after step {self.result.steps}"
        else:
            raise RequestError("is damaged: it says nothing that a recording has")

    def _add(self, line: Mapping[str, Any]) -> None:
        number, last = whole(line["add"], "request"), self.limits.vocab - 1
        prompt, ends = ([whole(token, "token", last) for token in line[name]] for name in ("prompt", "ends"))
        if line["constrained"]:
            self.unknown.add(number)
            return
        self.sampler.add(number, sampling_from_json(line["sampling"]), prompt, ends, self.limits.vocab)

    def _step(self, step: Step, line: Mapping[str, Any]) -> None:
        result = self.result
        check_step(step, self.limits)
        if self._lacks_adapter(step):
            return
        began = perf_counter()
        scores = self.worker.run(step)
        self._count(step, began, line)
        owners = [scheduled.request_id for scheduled in step.sequences for _ in range(scheduled.num_outputs)] or [
            step.sequences[-1].request_id
        ]
        self._compare("the greatest logit", line["best"], scores.best.tolist(), owners)
        if result.compared_logits:
            self._compare("the logits' checksum", line["logits"], checksums(scores.logits), owners)
        self.last = (step, scores)

    def _lacks_adapter(self, step: Step) -> bool:
        """Whether a step cannot be repeated because its adapter is not loaded."""
        adapter = self.worker.missing_adapter(step)
        if adapter is not None:
            told = f"step {self.result.steps + 1} uses adapter {adapter}, which a recording does not hold"
            self.result.stopped = f"{told}: load those of the recorded run, in the same order"
        return adapter is not None

    def _embed(self, step: Step, line: Mapping[str, Any]) -> None:
        check_step(step, self.limits)
        if self._lacks_adapter(step):
            return
        began = perf_counter()
        hidden = self.worker.embed(step)
        self._count(step, began, line)
        if self.result.compared_logits:
            self._compare("the checksum", line["hidden"], checksums(np.ascontiguousarray(hidden)), [0] * len(hidden))

    def _count(self, step: Step, began: float, line: Mapping[str, Any]) -> None:
        self.result.seconds += perf_counter() - began
        self.result.recorded_seconds += float(line["s"])
        self.result.steps += 1
        self.result.tokens += step.num_tokens

    def _compare(self, what: str, recorded: Sequence[int], found: Sequence[int], owners: Sequence[int]) -> None:
        if self.result.difference is not None:
            return
        if len(recorded) != len(found):
            self.result.difference = f"step {self.result.steps}: {len(found)} rows, recorded are {len(recorded)}"
            return
        for row, (then, now) in enumerate(zip(recorded, found, strict=True)):
            if then != now:
                where = f"step {self.result.steps}, row {row} (request {owners[row]})"
                self.result.difference = f"{where}: {what} was {then}, is {now}"
                return

    def _compare_said(self, said: Sequence[Sequence[int]]) -> None:
        if self.last is None:
            raise RequestError("is damaged: it has tokens that were said without a step")
        (step, scores), self.last = self.last, None
        speaking = [scheduled.request_id for scheduled in step.sequences if scheduled.num_outputs]
        picked = self.sampler.pick(scores.best, scores.logits, step).tokens
        if len(said) != len(picked):
            self.result.difference = f"step {self.result.steps}: {len(picked)} answers, recorded are {len(said)}"
            return
        for request, now, then in zip(speaking, picked, said, strict=True):
            if request in self.unknown:
                continue
            if list(then) != now:
                where = f"step {self.result.steps}, request {request}"
                self.result.difference = f"{where}: said {list(then)}, now says {now}"
                return
            self.result.said += len(now)


def check_step(step: Step, limits: EngineConfig) -> None:
    """Raise RequestError for a step that these limits do not allow: it would reach beyond the engine's memory."""
    if not 0 < len(step.sequences) <= limits.max_batch:
        raise RequestError(f"a step of {len(step.sequences)} sequences: 1 to {limits.max_batch} are possible")
    if not 0 < step.num_tokens <= limits.token_budget:
        raise RequestError(f"a step of {step.num_tokens} tokens: 1 to {limits.token_budget} are possible")
    for scheduled in step.sequences:
        _check_part(scheduled, limits)
    for pair in step.copies:
        for page in pair:
            whole(page, "page", limits.num_pages - 1)
    for pair in step.state_copies:
        for state in pair:
            whole(state, "state", limits.num_states - 1)


def _check_part(scheduled: ScheduledSequence, limits: EngineConfig) -> None:
    whole(scheduled.request_id, "request")
    whole(scheduled.adapter_id, "adapter")
    whole(scheduled.state_slot, "state", max(0, limits.num_states - 1))
    for token in scheduled.tokens:
        whole(token, "token", limits.vocab - 1)
    end = whole(scheduled.position, "position", limits.max_context) + len(scheduled.tokens)
    if not scheduled.tokens or end > limits.max_context:
        raise RequestError(f"a part of positions {scheduled.position} to {end}: the context holds {limits.max_context}")
    whole(scheduled.num_outputs, "number of rows", len(scheduled.tokens))
    if not count_pages(end) <= len(scheduled.page_table) <= count_pages(limits.max_context):
        raise RequestError(f"a part has {len(scheduled.page_table)} pages for {end} positions")
    for page in scheduled.page_table:
        if page >= limits.num_pages:
            raise RequestError(f"it uses page {page}, there are {limits.num_pages} here: free some memory")
        whole(page, "page")


def in_words(reason: Exception) -> str:
    """What is wrong with a line that could not be taken."""
    if isinstance(reason, KeyError):
        return f"it lacks {shown(reason.args[0])}"
    return "a value is of a wrong kind or length"


def whole(value: Any, what: str, most: int = WHOLE) -> int:
    """The value, if it is a whole number from 0 to `most`. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RequestError(f"the {what} is {value!r:.40}: it must be a whole number from 0 to {most}")
    return value


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
