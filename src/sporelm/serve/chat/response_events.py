"""An answer as the output items and events of OpenAI's responses API: reasoning, messages and calls, one at a time."""

from typing import Any

from sporelm.serve.chat.chat_stream import ChatChunk
from sporelm.serve.chat.token_logprobs import ChatLogprobs, TokenLogprob
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.sse import encode_event
from sporelm.text.dialects import Arguments, CallStart, Content, Delta, Reasoning

PART_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseEvents:
    """Turns the deltas of an answer into events; `items` holds the output items so far."""

    def __init__(self, response_id: str, logprobs: ChatLogprobs) -> None:
        self.response_id = response_id
        self.items: list[dict[str, Any]] = []
        self._logprobs = logprobs
        self._pending_logprobs: list[TokenLogprob] = []  # of tokens whose text has not come yet
        self._item_logprobs: list[TokenLogprob] = []  # of the open message
        self._sequence_number = 0
        self._open_type = ""  # the type of the open item
        self._text: list[str] = []

    def event(self, name: str, /, **fields: Any) -> bytes:
        """Return one event with its sequence number."""
        data = {"type": name, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return encode_event(encode_json(data), name.encode())

    def add(self, chunk: ChatChunk) -> list[bytes]:
        """Return the events of a chunk."""
        self._pending_logprobs += self._logprobs.of_piece(chunk.piece) or []
        return [event for delta in chunk.deltas for event in self.delta_events(delta)]

    def finish(self, *, is_truncated: bool) -> list[bytes]:
        """Return the last events. An empty answer is an empty message. If truncated, the last item is incomplete."""
        events = self.delta_events(Content("")) if not self.items else []
        return [*events, *self.close("incomplete" if is_truncated else "completed")]

    def error(self, error: ApiError) -> bytes:
        """Return the event of an error, which is the last one."""
        return self.event("error", code=error.code, message=error.message, param=error.param)

    def delta_events(self, delta: Delta) -> list[bytes]:
        """Return the events of a delta."""
        if isinstance(delta, Content | Reasoning):
            item_type = "message" if isinstance(delta, Content) else "reasoning"
            events = self._open_text_item(item_type) if self._open_type != item_type else []
            self._text.append(delta.text)
            logprobs = self._logprobs_field(self._pending_logprobs)
            self._item_logprobs += self._pending_logprobs
            self._pending_logprobs = []
            name = f"response.{PART_TYPES[item_type]}.delta"
            return [*events, self.event(name, **self._part_position, **logprobs, delta=delta.text)]
        self._pending_logprobs = []
        if isinstance(delta, CallStart):
            events = self.close()
            self._open_type, self._text = "function_call", []
            item = {"type": "function_call", "id": f"fc_{self.response_id}_{len(self.items)}", "call_id": delta.id}
            return [*events, self._add_item({**item, "name": delta.name, "arguments": "", "status": "in_progress"})]
        if isinstance(delta, Arguments):
            self._text.append(delta.text)
            return [self.event("response.function_call_arguments.delta", **self._item_position, delta=delta.text)]
        return self.close()

    @property
    def _item_position(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    @property
    def _part_position(self) -> dict[str, Any]:
        return {**self._item_position, "content_index": 0}

    def _logprobs_field(self, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": logprobs} if self._open_type == "message" else {}

    def _content_part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": PART_TYPES[self._open_type], "text": text}
        if self._open_type == "message":
            part |= {"annotations": [], **self._logprobs_field(self._item_logprobs)}
        return part

    def _add_item(self, item: dict[str, Any]) -> bytes:
        self.items.append(item)
        return self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)

    def _open_text_item(self, item_type: str) -> list[bytes]:
        """Open an item of text. Return its events."""
        events = self.close()
        self._open_type, self._text, self._item_logprobs = item_type, [], []
        item: dict[str, Any]
        if item_type == "message":
            item = {"type": item_type, "id": f"msg_{self.response_id}_{len(self.items)}", "status": "in_progress"}
            events.append(self._add_item({**item, "role": "assistant", "content": []}))
        else:
            item = {"type": item_type, "id": f"rs_{self.response_id}_{len(self.items)}", "summary": []}
            events.append(self._add_item({**item, "content": []}))
        return [*events, self.event("response.content_part.added", **self._part_position, part=self._content_part(""))]

    def close(self, status: str = "completed") -> list[bytes]:
        """Close the open item. Return its events."""
        if not self._open_type:
            return []
        item = dict(self.items[-1])
        text = "".join(self._text)
        events = list[bytes]()
        if self._open_type == "function_call":
            item |= {"arguments": text, "status": status}
            name = "response.function_call_arguments.done"
            events.append(self.event(name, **self._item_position, name=item["name"], arguments=text))
        else:
            part = self._content_part(text)
            item["content"] = [part]
            if self._open_type == "message":
                item["status"] = status
            name = f"response.{PART_TYPES[self._open_type]}.done"
            logprobs = self._logprobs_field(self._item_logprobs)
            events.append(self.event(name, **self._part_position, **logprobs, text=text))
            events.append(self.event("response.content_part.done", **self._part_position, part=part))
        self.items[-1] = item
        self._open_type = ""
        events.append(self.event("response.output_item.done", output_index=len(self.items) - 1, item=item))
        return events
