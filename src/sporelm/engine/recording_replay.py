"""Replays a recording on a worker that has computed nothing yet, and compares the results, step by step.

A recording may come from anywhere: all values that would reach memory are checked first.
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
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.ranks.worker_group import AnyWorker
from sporelm.engine.recording import MARK, READABLE, VERSION, checksums, sampling_from_json
from sporelm.engine.sampling import Sampler
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RequestError, SporeError, safe_repr

MAX_LINE_CHARS = 64 << 20  # characters
MAX_INT = (1 << 31) - 1


@dataclass
class ReplayResult:
    """The result of a replay."""

    steps: int = 0
    tokens: int = 0  # computed
    num_sampled: int = 0  # tokens that were sampled, and compared
    seconds: float = 0.0
    recorded_seconds: float = 0.0
    compared_logits: bool = True
    difference: str | None = None  # the first one
    stopped: str | None = None  # why it ended early
    is_truncated: bool = False  # whether the file ends within a line


class Recording:
    """A recording that is read."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises RequestError for other files."""
        self.path = path
        self.is_truncated = False
        try:
            with path.open(encoding="utf-8") as file:
                about = _parse_object(file.readline(MAX_LINE_CHARS))
        except (OSError, UnicodeDecodeError) as reason:
            raise RequestError(f"{path} cannot be read: {getattr(reason, 'strerror', None) or reason}") from None
        if about is None or MARK not in about:
            raise RequestError(f"{path} is not a recording: it does not begin with {MARK!r}")
        if about[MARK] not in READABLE:
            raise RequestError(f"{path} is a recording of version {about[MARK]!r:.20}; this program knows {VERSION}")
        self.about = about

    @property
    def limits(self) -> EngineConfig:
        """The limits of the recorded engine. Raises RequestError if they are damaged."""
        try:
            return EngineConfig(**self.about["limits"])
        except (KeyError, TypeError):
            raise RequestError(f"{self.path} does not say the limits of its engine: it is damaged") from None

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the recorded lines with their numbers, up to the last complete one."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.readline(MAX_LINE_CHARS)
            yield from self._rest(file)

    def _rest(self, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 1
        while text := file.readline(MAX_LINE_CHARS):
            number += 1
            if not text.endswith("\n"):
                self.is_truncated = True
                return
            values = _parse_object(text)
            if values is None:
                raise RequestError(f"{self.path}: line {number} is not a JSON object: the recording is damaged")
            yield number, values


class Replay:
    """The replay of one recording."""

    def __init__(self, recording: Recording, worker: AnyWorker, *, compare_logits: bool = True) -> None:
        """`compare_logits`: bit by bit, as computed by the same kernels; else argmax and sampled tokens only."""
        self.recording, self.worker, self.limits = recording, worker, worker.limits
        self.result = ReplayResult(compared_logits=compare_logits)
        self.sampler = Sampler()
        self.constrained_ids: set[int] = (
            set()
        )  # requests whose grammar is not in the file: they cannot be sampled again
        self.last: tuple[Step, ModelOutput] | None = None  # whose tokens were not sampled yet

    def run(self) -> ReplayResult:
        """Replay the recording up to the first difference. Raises RequestError if it is damaged."""
        for number, line in self.recording.lines():
            try:
                self._take(line)
            except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as reason:
                raise RequestError(
                    f"{self.recording.path}: line {number} is damaged: {describe_damage(reason)}"
                ) from None
            except SporeError as reason:
                colon = "" if str(reason).startswith("is damaged") else ":"
                raise RequestError(f"{self.recording.path}: line {number}{colon} {reason}") from None
            if self.result.difference or self.result.stopped:
                break
        self.result.is_truncated = self.recording.is_truncated
        return self.result

    def _take(self, line: Mapping[str, Any]) -> None:
        if "step" in line:
            self._step(Step.from_json(line["step"]), line)
        elif "embed" in line:
            self._embed(Step.from_json(line["embed"]), line)
        elif "said" in line:
            self._compare_sampled(line["said"])
        elif "add" in line:
            self._add(line)
        elif "drop" in line:
            self.sampler.drop(line["drop"])
            self.constrained_ids.discard(line["drop"])
        elif "imported" in line:
            pages = f"{len(line['imported'])} pages were filled from a file (a conversation woke)"
            self.result.stopped = f"after step {self.result.steps} {pages}, which a recording does not hold"
        elif "full" in line:
            self.result.stopped = f"the recording was full after step {self.result.steps}"
        else:
            raise RequestError("is damaged: it has none of the keys of a recording")

    def _add(self, line: Mapping[str, Any]) -> None:
        number, last = check_int(line["add"], "request"), self.limits.vocab - 1
        prompt, ends = ([check_int(token, "token", last) for token in line[name]] for name in ("prompt", "ends"))
        if line["constrained"]:
            self.constrained_ids.add(number)
            return
        self.sampler.add(number, sampling_from_json(line["sampling"]), prompt, ends, self.limits.vocab)

    def _step(self, step: Step, line: Mapping[str, Any]) -> None:
        result = self.result
        check_step(step, self.limits)
        if self._lacks_adapter(step):
            return
        began = perf_counter()
        output = self.worker.run(step)
        self._count(step, began, line)
        request_ids = [scheduled.request_id for scheduled in step.sequences for _ in range(scheduled.num_outputs)] or [
            step.sequences[-1].request_id
        ]
        self._compare("the greatest logit", line["best"], output.argmax.tolist(), request_ids)
        if result.compared_logits:
            self._compare("the logits' checksum", line["logits"], checksums(output.logits), request_ids)
        self.last = (step, output)

    def _lacks_adapter(self, step: Step) -> bool:
        """Return whether a step cannot be replayed because its adapter is not loaded."""
        adapter = self.worker.missing_adapter(step)
        if adapter is not None:
            missing = f"step {self.result.steps + 1} uses adapter {adapter}, which a recording does not hold"
            self.result.stopped = f"{missing}: load those of the recorded run, in the same order"
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

    def _compare(self, what: str, recorded: Sequence[int], found: Sequence[int], request_ids: Sequence[int]) -> None:
        if self.result.difference is not None:
            return
        if len(recorded) != len(found):
            self.result.difference = f"step {self.result.steps}: {len(found)} rows, recorded are {len(recorded)}"
            return
        for row, (then, now) in enumerate(zip(recorded, found, strict=True)):
            if then != now:
                where = f"step {self.result.steps}, row {row} (request {request_ids[row]})"
                self.result.difference = f"{where}: {what} was {then}, is {now}"
                return

    def _compare_sampled(self, recorded: Sequence[Sequence[int]]) -> None:
        if self.last is None:
            raise RequestError("is damaged: it has sampled tokens without a step")
        (step, output), self.last = self.last, None
        sequences = [scheduled for scheduled in step.sequences if scheduled.is_sampled and scheduled.num_outputs]
        request_ids = [scheduled.request_id for scheduled in sequences]
        sampled = self.sampler.sample(output, step).tokens
        if len(recorded) != len(sampled):
            self.result.difference = f"step {self.result.steps}: {len(sampled)} answers, recorded are {len(recorded)}"
            return
        for request, now, then in zip(request_ids, sampled, recorded, strict=True):
            if request in self.constrained_ids:
                continue
            if list(then) != now:
                where = f"step {self.result.steps}, request {request}"
                self.result.difference = f"{where}: said {list(then)}, now says {now}"
                return
            self.result.num_sampled += len(now)


def check_step(step: Step, limits: EngineConfig) -> None:
    """Raise RequestError for a step that these limits do not allow: it would reach beyond the engine's memory."""
    if not 0 < len(step.sequences) <= limits.max_batch:
        raise RequestError(f"a step of {len(step.sequences)} sequences: 1 to {limits.max_batch} are possible")
    if not 0 < step.num_tokens <= limits.token_budget:
        raise RequestError(f"a step of {step.num_tokens} tokens: 1 to {limits.token_budget} are possible")
    for scheduled in step.sequences:
        _check_sequence(scheduled, limits)
    for pair in step.copies:
        for page in pair:
            check_int(page, "page", limits.num_pages - 1)
    for pair in step.state_copies:
        for state in pair:
            check_int(state, "state", limits.num_states - 1)


def _check_sequence(scheduled: ScheduledSequence, limits: EngineConfig) -> None:
    check_int(scheduled.request_id, "request")
    check_int(scheduled.adapter_id, "adapter")
    check_int(scheduled.state_slot, "state", max(0, limits.num_states - 1))
    for token in scheduled.tokens:
        check_int(token, "token", limits.vocab - 1)
    end = check_int(scheduled.position, "position", limits.max_context) + len(scheduled.tokens)
    if not scheduled.tokens or end > limits.max_context:
        raise RequestError(f"a part of positions {scheduled.position} to {end}: the context holds {limits.max_context}")
    check_int(scheduled.num_outputs, "number of rows", len(scheduled.tokens))
    if not count_pages(end) <= len(scheduled.page_table) <= count_pages(limits.max_context):
        raise RequestError(f"a part has {len(scheduled.page_table)} pages for {end} positions")
    for page in scheduled.page_table:
        if page >= limits.num_pages:
            raise RequestError(f"it uses page {page}, there are {limits.num_pages} here: free some memory")
        check_int(page, "page")


def describe_damage(reason: Exception) -> str:
    """Return why a line is damaged."""
    if isinstance(reason, KeyError):
        return f"it lacks {safe_repr(reason.args[0])}"
    return "a value is of a wrong kind or length"


def check_int(value: Any, name: str, maximum: int = MAX_INT) -> int:
    """Return the value. Raises RequestError unless it is a whole number from 0 to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise RequestError(f"the {name} is {value!r:.40}: it must be a whole number from 0 to {maximum}")
    return value


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
