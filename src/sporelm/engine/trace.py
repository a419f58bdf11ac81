"""The trace of an engine: the phases of steps and the time of each op, as a trace file and as a table."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from sporelm.backends.protocol import CallTime, CallTimer
from sporelm.engine.encoder_engine import EncoderWorker
from sporelm.engine.ranks.worker_group import AnyWorker
from sporelm.engine.request import Request
from sporelm.engine.step import Step
from sporelm.engine.trace_file import PROCESS, TraceFile
from sporelm.engine.worker import Worker
from sporelm.ops import Call, Value
from sporelm.ops.op import leaves
from sporelm.ops.spec import spec_of

ENGINE_ROW = 1
FIRST_THREAD_ROW = 2
MAX_LABELS = 10_000
MAX_LISTED_REQUESTS = 32  # of a step
DRAFT = "draft model (within schedule)"
PHASES = ("schedule", "fill", "run", "sample", "commit")


class _Label(NamedTuple):
    """The labels of a call."""

    group: str  # in the table
    name: str  # of its spans
    args: str  # JSON without the last brace


@dataclass
class Summary:
    """The sums over all steps, in seconds; of ops the mean over the threads."""

    steps: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    ops: dict[str, tuple[int, float]] = field(default_factory=dict)  # calls and seconds, by op and number format

    @property
    def waiting(self) -> float:
        """Seconds in which the model ran and threads had no op: they waited for each other."""
        op_seconds = sum(seconds for name, (_, seconds) in self.ops.items() if name != DRAFT)
        return max(0.0, self.parts["run"] - op_seconds)


class Trace:
    """Observes an engine and writes events to a file."""

    def __init__(self, file: TraceFile, worker: AnyWorker | EncoderWorker, draft: Worker | None = None) -> None:
        """Observe the engine of this worker, whose drafts may come from the worker `draft`."""
        self.file, self.worker = file, worker
        self.summary = Summary()
        self._zero = perf_counter()
        self._end = 0.0  # of the last step
        self._open: dict[int, Request] = {}
        self._labels: dict[tuple[int, str], tuple[Call, _Label]] = {}  # the call is kept, so that no other has its id
        self._names = {id(tensor): name for name, tensor in worker.runner.weights.items()}
        if draft is not None:
            self._names |= {id(tensor): f"draft {name}" for name, tensor in draft.runner.weights.items()}
        device = worker.device
        self._times: Callable[[], list[CallTime]] = device.time_calls() if isinstance(device, CallTimer) else list
        self._threads: set[int] = set()
        self._name("process_name", 0, "spore")
        self._name("thread_name", ENGINE_ROW, "engine")

    def _at(self, moment: float) -> float:
        """Return microseconds since the trace began."""
        return (moment - self._zero) * 1e6

    def _name(self, what: str, row: int, name: str) -> None:
        args = json.dumps({"name": name})
        self.file.event(f'{{"ph": "M", "name": "{what}", "pid": {PROCESS}, "tid": {row}, "args": {args}}}', always=True)

    # ---- called by the engine

    def on_add(self, request: Request) -> None:
        """Note that a request was added."""
        self._open[request.id] = request

    def on_step(self, step: Step, moments: Sequence[float]) -> None:
        """Note a step, which was scheduled, run, sampled and committed between these moments."""
        times = [time for time in self._times() if time.began >= moments[0]]
        began, scheduled, computed, sampled, ended = moments
        # A step that was scheduled while the one before ran was filled then; the runner has filled the next one since.
        is_ahead = scheduled <= self._end
        filled = scheduled if is_ahead else min(max(scheduled, self.worker.runner.filled_at), computed)
        self._end = ended
        self._count(times, (began, scheduled, filled, computed, sampled, ended))
        if not self.file.is_full():
            self._write_step(step, times, (began, scheduled, filled, computed, sampled, ended))
            if self.file.is_full():
                self._tell_full()
        else:
            self.file.left_out += 1 + len(PHASES) + len(times)

    def on_end(self, request: Request) -> None:
        """Note that a request has ended."""
        if self._open.pop(request.id, None) is not None:
            self._write_request(request, perf_counter())

    def close(self) -> None:
        """Write open requests, and move the file to its place. The engine must be idle."""
        for request in list(self._open.values()):
            self.on_end(request)
        self.file.close()

    # ---- steps

    def _count(self, times: Sequence[CallTime], moments: Sequence[float]) -> None:
        summary = self.summary
        summary.steps += 1
        summary.seconds += moments[-1] - moments[0]
        for phase, first, last in zip(PHASES, moments, moments[1:], strict=False):
            summary.parts[phase] += last - first
        threads = 1 + max((time.thread for time in times), default=0)
        counted = set[tuple[int, str]]()
        for time in times:
            # A draft model computes while the step is scheduled.
            group = self._label(time).group if time.began >= moments[1] else DRAFT
            key = (id(time.call), time.kernel)
            calls, seconds = summary.ops.get(group, (0, 0.0))
            summary.ops[group] = (calls + (key not in counted), seconds + time.seconds / threads)
            counted.add(key)

    def _write_step(self, step: Step, times: Sequence[CallTime], moments: Sequence[float]) -> None:
        file, at = self.file, [self._at(moment) for moment in moments]
        requests = [scheduled.request_id for scheduled in step.sequences]
        args = {
            "tokens": step.num_tokens,
            "sequences": len(requests),
            "rows": step.num_outputs,
            "regime": self._step_bucket(step),  # old name: a key that is written
            "copied pages": len(step.copies),
            "requests": requests[:MAX_LISTED_REQUESTS],
        }
        file.span(f"step {self.summary.steps}", ENGINE_ROW, at[0], at[-1], json.dumps(args))
        for phase, first, last in zip(PHASES, at, at[1:], strict=False):
            file.span(phase, ENGINE_ROW, first, last)
        tokens = step.num_tokens
        for time in times:
            if time.thread not in self._threads:
                self._threads.add(time.thread)
                self._name("thread_name", FIRST_THREAD_ROW + time.thread, f"thread {time.thread}")
            label, begins = self._label(time), self._at(time.began)
            ends, row = begins + time.seconds * 1e6, FIRST_THREAD_ROW + time.thread
            file.span(label.name, row, begins, ends, f'{label.args}, "tokens": {tokens}}}')

    def _step_bucket(self, step: Step) -> str:
        if self.worker.runner.plan is None:
            return "eager"
        limits = self.worker.device.step_buckets.items()
        return next((name for name, max_tokens in limits if step.num_tokens <= max_tokens), "")

    def _label(self, time: CallTime) -> _Label:
        key = (id(time.call), time.kernel)
        if key in self._labels:
            return self._labels[key][1]
        runner = self.worker.runner
        if runner.lora_runtime is not None:
            self._names |= {id(tensor): name for name, tensor in runner.lora_runtime.weights.items()}
        label = describe(time, self._names)
        if runner.plan is not None:  # op by op each call is a new one, whose tensors would be kept here
            if len(self._labels) >= MAX_LABELS:
                self._labels.clear()
            self._labels[key] = (time.call, label)
        return label

    def _tell_full(self) -> None:
        text = f"the trace stops here: it has {self.file.count} events, as many as it may have"
        self.file.event(
            f'{{"ph": "i", "s": "g", "name": {json.dumps(text)}, "pid": {PROCESS}, "tid": {ENGINE_ROW}, '
            f'"ts": {self._at(perf_counter()):.3f}}}',
            always=True,
        )

    # ---- requests

    def _write_request(self, request: Request, now: float) -> None:
        """Write a row for the request, with the phases that it reached."""
        if self.file.is_full():
            self.file.left_out += 1
            return
        started, first = request.start_time, request.first_token_time
        args = {
            "prompt tokens": request.num_prompt,
            "cached tokens": request.cached_tokens,
            "cache miss": request.cache_miss,
            "generated": request.num_generated,
            "finish reason": request.finish_reason,
        }
        self._phase(request.id, f"request {request.id}", request.arrival_time, now, args)
        self._phase(request.id, "queued", request.arrival_time, started or now)
        if started:
            self._phase(request.id, "prefill", started, first or now)
        if first:
            self._phase(request.id, "decode", first, max(first, request.last_token_time))

    def _phase(self, request: int, name: str, began: float, ended: float, args: Any = None) -> None:
        about = f', "args": {json.dumps(args)}' if args else ""
        for kind, moment, more in (("b", began, about), ("e", ended, "")):
            self.file.event(
                f'{{"ph": "{kind}", "cat": "request", "id": {request}, "name": "{name}", "pid": {PROCESS}, '
                f'"tid": {ENGINE_ROW}, "ts": {self._at(moment):.3f}{more}}}',
                always=True,  # all of a request, or nothing
            )


def describe(time: CallTime, names: dict[int, str]) -> _Label:
    """Return the labels of a call; `names` are those of weights, by the tensor's id."""
    call = time.call
    weights = [value for value in leaves(call.args) if not isinstance(value, Value) and id(value) in names]
    formats = sorted({str(weight.dtype.name) for weight in weights})
    args: dict[str, Any] = {"kernel": time.kernel} if time.kernel else {}
    if weights:
        args["weight"] = ", ".join(names[id(weight)] for weight in weights)
        args["shape"] = ", ".join("x".join(map(str, weight.shape)) for weight in weights)
        args["format"] = ", ".join(formats)
    args["result"] = ", ".join(str(spec_of(value)) for value in call.results)
    shown = f"{call.op.name} {names[id(weights[0])]}" if weights else call.op.name
    group = f"{call.op.name} {'/'.join(formats)}" if formats and len(weights[0].shape) > 1 else call.op.name
    return _Label(group, shown, json.dumps(args)[:-1])
