"""Items and events of OpenAI's responses API."""

import json
from types import SimpleNamespace
from typing import Any

from sporelm.serve.chat.chat_stream import ChatChunk
from sporelm.serve.chat.response_events import ResponseEvents
from sporelm.serve.chat.response_items import messages_from_items
from sporelm.serve.http.api_errors import ApiError
from sporelm.text.dialects import Arguments, CallStart, Content, Delta


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def test_calls_join_the_message_that_they_follow() -> None:
    said = {"role": "assistant", "content": "I look."}
    found = messages_from_items(None, [{"role": "user", "content": "Weather?"}, said, call("a"), call("b")])
    assert [message["role"] for message in found] == ["user", "assistant"]
    assert found[1]["content"] == "I look."
    assert [each["id"] for each in found[1]["tool_calls"]] == ["a", "b"]
    alone = messages_from_items(None, [{"role": "user", "content": "Weather?"}, call("a"), call("b")])
    assert [len(message.get("tool_calls", [])) for message in alone] == [0, 2]
    assert "tool_calls" not in said, "what was given stays as it is"


def events_of(deltas: list[Delta]) -> ResponseEvents:
    scores: Any = SimpleNamespace(of_piece=lambda piece: None)
    events = ResponseEvents("resp_1", scores)
    events.add(ChatChunk(0, deltas, None))  # type: ignore[arg-type]
    return events


def test_what_is_open_when_an_answer_is_cut_is_incomplete() -> None:
    for deltas in ([Content("Once")], [CallStart(0, "id", "f"), Arguments(0, '{"a": ')]):
        for cut, status in ((True, "incomplete"), (False, "completed")):
            events = events_of(deltas)
            last = json.loads(events.finish(is_truncated=cut)[-1].split(b"data: ")[1])
            assert (last["type"], last["item"]["status"]) == ("response.output_item.done", status)
            assert events.items[-1]["status"] == status


def test_an_error_has_its_place_among_the_events() -> None:
    events = events_of([Content("Once")])
    before = json.loads(events.event("response.in_progress").split(b"data: ")[1])["sequence_number"]
    error = json.loads(events.error(ApiError(503, "the engine failed", code="engine_failed")).split(b"data: ")[1])
    assert error["sequence_number"] == before + 1
    assert (error["type"], error["code"], error["message"]) == ("error", "engine_failed", "the engine failed")
