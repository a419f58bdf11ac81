"""Requests are drawn, written, and read from recordings and traces of engines."""

import json
from pathlib import Path

import numpy as np
import pytest

from sporelm.bench.scale.request_trace import (
    LengthSpread,
    RequestMix,
    RequestTimes,
    TracedRequest,
    count_rate,
    read_request_times,
    read_requests,
    write_request_times,
)
from sporelm.errors import RequestError

MIX = RequestMix(LengthSpread(500, 1.0, 16, 6000), LengthSpread(200, 0.7, 8, 1500))


def test_random_requests_have_the_rate_and_the_lengths() -> None:
    requests = MIX.draw(10, 1000, seed=1)
    assert count_rate(requests) == pytest.approx(10, rel=0.05)
    assert np.median([each.prompt_tokens for each in requests]) == pytest.approx(500, rel=0.05)
    assert min(each.output_tokens for each in requests) >= 8
    assert max(each.prompt_tokens for each in requests) <= 6000
    assert requests == sorted(requests) == MIX.draw(10, 1000, seed=1)


def test_shared_tokens_are_a_part_of_the_prompt() -> None:
    mix = RequestMix(LengthSpread(10), LengthSpread(10), 100)
    assert {(each.prompt_tokens, each.shared_tokens) for each in mix.draw(1, 100)} == {(110, 100)}


def test_no_request_has_no_rate() -> None:
    assert count_rate([]) == count_rate([TracedRequest(1, 1, 1)]) == 0


def test_measured_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    times = [RequestTimes(TracedRequest(0.5, 10, 20), 0.25, 1.5), RequestTimes(TracedRequest(1.0, 11, 2), 0.125, 0.25)]
    path = tmp_path / "load.jsonl"
    write_request_times(path, times)
    assert read_request_times(path) == times
    assert read_requests(path) == [each.request for each in times]


def test_the_trace_of_an_engine(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "step 1", "ts": 0}]
    for number, start in ((7, 2e6), (3, 1e6)):
        args = {"prompt tokens": 10 * number, "generated": number}
        for name, begin, end in (("request", 0, 9), ("queued", 0, 1), ("prefill", 1, 3), ("decode", 3, 9)):
            title = f"request {number}" if name == "request" else name
            events.append({"ph": "b", "cat": "request", "id": number, "name": title, "ts": start + begin, "args": args})
            events.append({"ph": "e", "cat": "request", "id": number, "name": title, "ts": start + end})
    events.append(
        {"ph": "b", "cat": "request", "id": 9, "name": "request 9", "ts": 0.5e6, "args": args | {"generated": 0}}
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    first, second = read_request_times(path)
    assert (first.request.prompt_tokens, second.request.output_tokens) == (30, 7)
    assert second.request.arrival_seconds - first.request.arrival_seconds == pytest.approx(1)
    assert (first.first_token_seconds, first.last_token_seconds) == (pytest.approx(3e-6), pytest.approx(9e-6))
    assert read_requests(path) == [first.request, second.request]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]\n", "line 1 is not a JSON object"),
        ('{"arrival_seconds": 1}\n', "line 1 is not a request"),
        ('\n{"arrival_seconds": 0, "prompt_tokens": 0, "output_tokens": 1}\n', "line 2 is not a request"),
        ('{"traceEvents": 3', "not a trace"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        read_requests(path)


def test_requests_without_times_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"arrival_seconds": 0, "prompt_tokens": 1, "output_tokens": 1}\n')
    with pytest.raises(RequestError, match="no measured times"):
        read_request_times(path)
    with pytest.raises(RequestError, match="not readable"):
        read_requests(tmp_path / "none.jsonl")
