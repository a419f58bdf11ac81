"""The file of a trace, and what is said of calls; `tests/system/test_trace_and_record.py` traces a model."""

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.backends.protocol import CallTime
from sporelm.engine import Request, Step
from sporelm.engine.step import ScheduledSequence
from sporelm.engine.trace import DRAFT, ENGINE_ROW, Trace, describe
from sporelm.engine.trace_file import TraceFile
from sporelm.errors import RequestError
from sporelm.ops import Call, Graph, Spec, add
from sporelm.tensor.dtype import F32


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


def test_a_trace_appears_whole_when_it_is_closed(tmp_path):
    path = tmp_path / "t.json"
    file = TraceFile(path, {"model": 'a "name"'})
    file.span("step 1", 3, 10.0, 12.5, '{"tokens": 4}')
    assert not path.exists()
    file.close()
    file.close()
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["otherData"] == {"model": 'a "name"'}
    assert whole["traceEvents"] == [
        {"ph": "X", "name": "step 1", "pid": 1, "tid": 3, "ts": 10.0, "dur": 2.5, "args": {"tokens": 4}}
    ]
    TraceFile(path, {}).close()  # an earlier trace gives way
    assert events(path) == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_that_saw_nothing_leaves_nothing(tmp_path):
    TraceFile(tmp_path / "t.json", {}).remove()
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and so on")
    with pytest.raises(RequestError, match=r"model\.gguf: exists and is not a trace"):
        TraceFile(path, {})
    with pytest.raises(RequestError, match="is not a trace"):
        TraceFile(tmp_path, {})
    with pytest.raises(RequestError, match="cannot be written: No such file"):
        TraceFile(tmp_path / "none" / "t.json", {})
    assert path.read_bytes() == b"GGUF and so on"


def test_a_full_trace_says_so_and_stays_valid(tmp_path):
    path = tmp_path / "t.json"
    file = TraceFile(path, {}, max_events=5)
    for number in range(9):
        file.span(f"span {number}", 1, number, number + 1)
    assert file.is_full()
    file.event('{"ph": "i", "name": "the end"}', always=True)
    file.close()
    assert [event["name"] for event in events(path)] == [*(f"span {number}" for number in range(5)), "the end"]
    assert file.left_out == 4


def test_a_disk_that_fills_up_ends_the_trace_alone(tmp_path):
    path = tmp_path / "t.json"
    file = TraceFile(path, {})

    class Full:
        closed = False

        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.closed = True

    file._file.close()
    file._file = Full()  # type: ignore[assignment]
    file.span("step", 1, 0, 1)
    file.span("step", 1, 1, 2)
    assert file.is_full()
    file.close()
    assert file.failure == "No space left on device"
    assert list(tmp_path.iterdir()) == []


class Tensor:
    """As much of a weight as a label needs."""

    def __init__(self, name: str, *shape: int) -> None:
        self.dtype, self.shape = SimpleNamespace(name=name), shape


def call(*constants: Any) -> Call:
    graph = Graph()
    x = graph.input("x", Spec((4, 8), F32))
    return Call(add, (x, *constants), {}, (x,))


def test_a_call_is_known_by_its_weights():
    query, key = Tensor("Q4_K", 64, 8), Tensor("Q6_K", 16, 8)
    time = CallTime(call((query, key)), "linear_one", 0, 0.0, 1.0)
    label = describe(time, {id(query): "layers.0.q", id(key): "layers.0.k"})
    assert (label.group, label.name) == ("add Q4_K/Q6_K", "add layers.0.q")
    assert json.loads(label.args + "}") == {
        "kernel": "linear_one", "weight": "layers.0.q, layers.0.k", "shape": "64x8, 16x8", "format": "Q4_K, Q6_K",
        "result": "f32[4, 8]",
    }  # fmt: skip
    plain = describe(CallTime(call(), "", 0, 0.0, 1.0), {})
    assert (plain.group, plain.name) == ("add", "add")


def watched(tmp_path: Path, max_events: int = 1000) -> tuple[Trace, list[CallTime]]:
    """A trace of a worker of two threads that computes nothing."""
    times: list[CallTime] = []
    runner = SimpleNamespace(weights={}, lora_runtime=None, filled_at=0.0, plan=object())

    def take() -> list[CallTime]:
        taken = list(times)
        times.clear()
        return taken

    device = SimpleNamespace(step_buckets={"one": 1, "few": 16}, time_calls=lambda: take)
    return Trace(TraceFile(tmp_path / "t.json", {}, max_events), SimpleNamespace(runner=runner, device=device)), times  # type: ignore[arg-type]


def test_a_step_that_was_launched_while_another_ran_has_no_time_of_its_own_to_fill(tmp_path):
    trace, _ = watched(tmp_path)
    runner, zero = trace.worker.runner, trace._zero
    step = Step([ScheduledSequence(1, [5], 0, (0,), 1)], [])
    runner.filled_at = zero + 3.0
    trace.on_step(step, [zero + second for second in (1.0, 2.0, 5.0, 5.0, 6.0)])
    runner.filled_at = zero + 8.0  # of the step after the second one
    trace.on_step(step, [zero + second for second in (6.0, 6.0, 9.0, 9.0, 10.0)])
    parts = {"schedule": 1.0, "fill": 1.0, "run": 5.0, "sample": 0.0, "commit": 2.0}
    assert trace.summary.parts == pytest.approx(parts)
    runner.filled_at = zero + 12.5
    trace.on_step(step, [zero + second for second in (12.0, 12.0, 13.0, 13.0, 13.0)])
    assert trace.summary.parts["fill"] == pytest.approx(1.5), "an encoder's step has no time to schedule"
    trace.close()


def test_a_step_is_its_parts_and_its_calls(tmp_path):
    trace, times = watched(tmp_path)
    zero = trace._zero
    trace.worker.runner.filled_at = zero + 0.003
    chosen, drafted = call(), call()
    times += [
        CallTime(chosen, "a", 0, zero - 9.0, 5.0),  # of before
        CallTime(drafted, "d", 0, zero + 0.0015, 0.0002),  # a draft model
        CallTime(chosen, "a", 0, zero + 0.004, 0.002),
        CallTime(chosen, "a", 1, zero + 0.004, 0.004),
    ]
    moments = [zero + second for second in (0.001, 0.002, 0.009, 0.010, 0.011)]
    trace.on_step(Step([ScheduledSequence(7, [1, 2, 3], 0, (0,), 1)], [(1, 2)]), moments)
    assert times == []
    trace.close()
    spans = [event for event in events(tmp_path / "t.json") if event["ph"] == "X"]
    engine = [(span["name"], round(span["ts"]), round(span["dur"])) for span in spans if span["tid"] == ENGINE_ROW]
    assert engine == [
        ("step 1", 1000, 10000), ("schedule", 1000, 1000), ("fill", 2000, 1000), ("run", 3000, 6000),
        ("sample", 9000, 1000), ("commit", 10000, 1000),
    ]  # fmt: skip
    assert spans[0]["args"] == {
        "tokens": 3, "sequences": 1, "rows": 1,
        "regime": "few",  # old name: a key that is written
        "copied pages": 1, "requests": [7],
    }  # fmt: skip
    calls = [(span["tid"], round(span["ts"]), round(span["dur"])) for span in spans if span["tid"] > ENGINE_ROW]
    assert calls == [(2, 1500, 200), (2, 4000, 2000), (3, 4000, 4000)]
    summary = trace.summary
    assert summary.ops["add"] == (1, pytest.approx(0.003))  # of two threads' 2 and 4 ms
    assert summary.ops[DRAFT] == (1, pytest.approx(0.0001))
    assert summary.waiting == pytest.approx(0.003)
    assert summary.seconds == pytest.approx(0.010)


def test_calls_op_by_op_are_not_kept(tmp_path):
    trace, times = watched(tmp_path)
    trace.worker.runner.plan = None
    times.append(CallTime(call(), "a", 0, trace._zero + 0.004, 0.002))
    kept = weakref.ref(times[0].call.results[0])
    trace.on_step(
        Step([ScheduledSequence(7, [1, 2, 3], 0, (0,), 1)], []),
        [trace._zero + 0.001 * second for second in range(1, 6)],
    )
    assert "add" in trace.summary.ops
    gc.collect()
    assert kept() is None
    trace.close()


def test_a_request_is_a_row_with_its_phases(tmp_path):
    trace, _ = watched(tmp_path)
    request, waiting = Request([1, 2, 3]), Request([4])
    request.id, waiting.id = 5, 6
    request.arrival_time, request.start_time = trace._zero + 1, trace._zero + 2
    request.first_token_time, request.last_token_time = trace._zero + 3, trace._zero + 4
    waiting.arrival_time = trace._zero + 1
    for each in (request, waiting):
        trace.on_add(each)
    trace.on_end(request)
    trace.on_end(request)  # once
    trace.close()
    found = [event for event in events(tmp_path / "t.json") if event.get("cat") == "request"]
    begins = {(event["id"], event["name"]): event for event in found if event["ph"] == "b"}
    ends = {(event["id"], event["name"]): event for event in found if event["ph"] == "e"}
    assert begins.keys() == ends.keys()
    names = ["request 5", "queued", "prefill", "decode"]
    assert list(begins) == [*((5, name) for name in names), (6, "request 6"), (6, "queued")]
    assert [round(begins[5, name]["ts"] / 1e6) for name in names[1:]] == [1, 2, 3]
    assert [round(ends[5, name]["ts"] / 1e6) for name in names[1:]] == [2, 3, 4]
    assert begins[5, "request 5"]["args"]["prompt tokens"] == 3


def test_steps_beyond_the_limit_are_counted_all_the_same(tmp_path):
    trace, _ = watched(tmp_path, max_events=20)
    for number in range(10):
        moments = [trace._zero + number + part / 10 for part in range(5)]
        trace.on_step(Step([ScheduledSequence(1, [1], number, (0,), 1)], []), moments)
    late = Request([1])
    trace.on_add(late)
    trace.on_end(late)
    trace.close()
    assert trace.summary.steps == 10
    assert trace.file.left_out >= 6 * 6 + 1  # of six steps and a request
    found = events(tmp_path / "t.json")
    assert sum("stops here" in event["name"] for event in found) == 1
    assert len(found) < 30
    assert not [event for event in found if event["name"].startswith("request")]
