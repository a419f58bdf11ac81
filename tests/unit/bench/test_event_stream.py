"""Events found in bytes, however they are cut; and errors' bodies in the forms that servers have for them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.bench.serving.event_stream import MAX_EVENT_BYTES, EventStream, error_message, find_usage, is_finished


def chat(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


EVENTS = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    chat("Hello"),
    chat('he said "content": "x"\n\n\r\n'),
    chat(None),
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    chat("", "length"),
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}, "error": None},
]


def stream_of(events: list[dict[str, Any]], end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(each)}{end}" for each in events).encode() + b"data: [DONE]" + end.encode()


@given(
    cuts=st.lists(st.integers(0, 900), max_size=12),
    end=st.sampled_from(["\n\n", "\r\n\r\n"]),
)
def test_events_are_found_however_they_arrive(cuts: list[int], end: str) -> None:
    data = stream_of(EVENTS, end)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream = EventStream()
    for moment, (begin, stop) in enumerate(pairwise(places)):
        stream.take(data[begin:stop], float(moment))
    assert len(stream.times) == 3
    assert stream.num_events == len(EVENTS)
    assert stream.done
    assert stream.error is None
    assert find_usage(stream.ending()) == {"prompt_tokens": 3, "completion_tokens": 3}
    assert is_finished(stream.ending())


def test_a_text_counts_when_its_event_is_whole() -> None:
    stream = EventStream()
    first, second = stream_of([chat("a"), chat("b")]).split(b"\n\n")[:2]
    stream.take(first, 1.0)
    assert stream.times == []
    stream.take(b"\n\n" + second + b"\n", 2.0)
    stream.take(b"\n", 3.0)
    assert stream.times == [2.0, 3.0]


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": [{"delta": {"content": "\n"}}]}, True),
        ({"choices": [{"delta": {"content": '"'}}]}, True),
        ({"choices": [{"delta": {"tool": 'say "content":"x"'}}]}, False),
        ({"choices": [{"delta": {"reasoning": "so"}}]}, True),
    ],
)
def test_which_events_have_a_text(event: dict[str, Any], found: bool) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        stream = EventStream()
        stream.take(b"data: " + json.dumps(event, separators=separators).encode() + b"\n\n", 1.0)
        assert bool(stream.times) is found


def test_errors_in_a_stream() -> None:
    stream = EventStream()
    stream.take(b'data: {"error":{"message":"out of memory"}}\n\n', 1.0)
    assert stream.error is not None
    assert error_message(stream.error) == "out of memory"
    other = EventStream()
    other.take(b'error: {"code": 500, "message": "bad"}\n\n', 1.0)
    assert other.error is not None
    assert error_message(other.error) == "bad"
    assert not is_finished(other.ending())


def test_what_never_ends_is_refused() -> None:
    stream = EventStream()
    with pytest.raises(ValueError, match="an event of the answer is longer"):
        stream.take(b"x" * (MAX_EVENT_BYTES + 1), 1.0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"no model x","code":404}}', "no model x"),
        (b'{"error":"full"}', "full"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"message":"later"}', "later"),
        (b"<h1>\n gone </h1>", "<h1> gone </h1>"),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_what_errors_say(body: bytes, said: str) -> None:
    assert error_message(body) == said


def test_usage_that_is_none() -> None:
    assert find_usage([{"usage": None}, {"usage": 3}, {}]) == {}
    assert find_usage([{"usage": None}, {"usage": {"completion_tokens": 1}}]) == {"completion_tokens": 1}
    assert not is_finished([{"choices": None}, {"choices": [3]}])
