"""Requests with their arrivals and lengths: recorded by an engine's trace, listed in a file, or drawn at random."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import RequestError

MEASURED = ("first_token_seconds", "last_token_seconds")
REQUEST_SPAN = re.compile(r"request (\d+)")


@dataclass(frozen=True, order=True)
class TracedRequest:
    """A request: when it arrives, the tokens of its prompt, and of its answer. `shared_tokens` begin all prompts."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0


@dataclass(frozen=True)
class RequestTimes:
    """The measured times of a traced request, in seconds from its arrival."""

    request: TracedRequest
    first_token_seconds: float
    last_token_seconds: float


@dataclass(frozen=True)
class LengthSpread:
    """A log-normal distribution of lengths in tokens, cut to `minimum` and `maximum`.

    sigma   of the logarithm; 0: all have the median
    """

    median: float
    sigma: float = 0.0
    minimum: int = 1
    maximum: int = 1 << 20

    def draw(self, random: np.random.Generator, count: int) -> list[int]:
        """Return `count` lengths."""
        drawn = np.exp(random.normal(log(self.median), self.sigma, count))
        lengths: list[int] = np.clip(np.rint(drawn), self.minimum, self.maximum).astype(int).tolist()
        return lengths


@dataclass(frozen=True)
class RequestMix:
    """The requests of many users: the spread of their lengths, and the tokens that all prompts have in common."""

    prompt: LengthSpread
    output: LengthSpread
    shared_tokens: int = 0

    def draw(self, rate: float, seconds: float, seed: int = 0) -> list[TracedRequest]:
        """Return requests that arrive at random, `rate` a second (a Poisson process), for `seconds`."""
        random = np.random.default_rng(seed)
        count = int(random.poisson(rate * seconds))
        arrivals = np.sort(random.uniform(0, seconds, count)).tolist()
        prompts, outputs = self.prompt.draw(random, count), self.output.draw(random, count)
        return [
            TracedRequest(arrival, prompt + self.shared_tokens, output, self.shared_tokens)
            for arrival, prompt, output in zip(arrivals, prompts, outputs, strict=True)
        ]


def read_requests(path: Path) -> list[TracedRequest]:
    """Return the requests of a trace that `--trace` wrote, or of a file with a JSON object a line. Raises RequestError.

    The keys of a line are the fields of `TracedRequest`; measured times may stand beside them.
    """
    text = _read_text(path)
    if _is_trace(text):
        return [times.request for times in parse_trace(text, path.name)]
    return sorted(_make_request(values, path.name, number) for number, values in _parse_lines(text, path.name))


def write_request_times(path: Path, times: Iterable[RequestTimes]) -> None:
    """Write requests with their measured times as JSON objects, one a line; `read_requests` reads them too."""
    lines = []
    for each in times:
        measured = {name: round(getattr(each, name), 6) for name in MEASURED}
        lines.append(f"{json.dumps(asdict(each.request) | measured)}\n")
    path.write_text("".join(lines), encoding="utf-8")


def read_request_times(path: Path) -> list[RequestTimes]:
    """Return the requests of a file with their measured times. Raises RequestError if they were not measured."""
    text = _read_text(path)
    if _is_trace(text):
        return parse_trace(text, path.name)
    times = []
    for number, values in _parse_lines(text, path.name):
        try:
            first, last = (float(values.pop(name)) for name in MEASURED)
        except (KeyError, TypeError, ValueError):
            raise RequestError(f"{path.name}: line {number} has no measured times ({', '.join(MEASURED)}).") from None
        times.append(RequestTimes(_make_request(values, path.name, number), first, last))
    return sorted(times, key=lambda each: each.request)


def _is_trace(text: str) -> bool:
    """Return whether a text is a trace in Chrome's format."""
    return '"traceEvents"' in text[:10_000]


def _parse_lines(text: str, name: str) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a text with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise RequestError(f"{name}: line {number} is not a JSON object.")
        yield number, values


def _make_request(values: Mapping[str, Any], name: str, number: int) -> TracedRequest:
    """Return the request of a line."""
    try:
        request = TracedRequest(**{key: value for key, value in values.items() if key not in MEASURED})
        if request.arrival_seconds < 0 or request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError
    except (ValueError, TypeError):
        fields = ", ".join(TracedRequest.__dataclass_fields__)
        raise RequestError(f"{name}: line {number} is not a request (allowed keys: {fields}).") from None
    return request


def parse_trace(text: str, name: str) -> list[RequestTimes]:
    """Return the finished requests of a trace file (`engine.trace`), in the order of their arrival."""
    try:
        events: Sequence[Mapping[str, Any]] = json.loads(text)["traceEvents"]
    except (ValueError, KeyError, TypeError):
        raise RequestError(f"{name}: not a trace of an engine (allowed: a file that --trace wrote).") from None
    spans: dict[int, dict[str, list[float]]] = {}
    lengths: dict[int, tuple[int, int]] = {}
    for event in events:
        if event.get("cat") != "request":
            continue
        kind = "request" if REQUEST_SPAN.fullmatch(event["name"]) else event["name"]
        spans.setdefault(event["id"], {}).setdefault(kind, []).append(event["ts"] / 1e6)
        if kind == "request" and event["ph"] == "b":
            lengths[event["id"]] = (event["args"]["prompt tokens"], event["args"]["generated"])
    first_arrival = min((span["request"][0] for span in spans.values()), default=0.0)
    times = []
    for request_id, span in spans.items():
        if "decode" not in span or not lengths[request_id][1]:
            continue  # it was cancelled before its first token
        arrival = span["request"][0]
        request = TracedRequest(arrival - first_arrival, *lengths[request_id])
        times.append(RequestTimes(request, span["decode"][0] - arrival, span["decode"][1] - arrival))
    return sorted(times, key=lambda each: each.request)


def count_rate(requests: Sequence[TracedRequest]) -> float:
    """Return the arrivals a second of a trace; 0 for fewer than two."""
    gaps = [after.arrival_seconds - before.arrival_seconds for before, after in pairwise(sorted(requests))]
    return len(gaps) / sum(gaps) if sum(gaps) else 0.0


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise RequestError(f"{path}: not readable ({getattr(reason, 'strerror', None) or reason}).") from None
