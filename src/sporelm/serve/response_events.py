"""An answer as the items and the events of OpenAI's responses API: reasoning, messages and calls, one at a time."""

from typing import Any

from sporelm.serve.chat import Said
from sporelm.serve.endpoint import encoded
from sporelm.serve.events import sse
from sporelm.serve.failures import Refusal
from sporelm.serve.reading import Arguments, CallBegun, Content, Delta, Reasoning
from sporelm.serve.scores import Scores, TokenLogprob

PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class Events:
    """Turns what a parser gives out into events; `items` are what they have told."""

    def __init__(self, number: str, scores: Scores) -> None:
        self.number, self._scores = number, scores
        self.items: list[dict[str, Any]] = []
        self._waiting: list[TokenLogprob] = []  # of tokens whose text has not come yet
        self._told: list[TokenLogprob] = []  # of the message that is open
        self._sequence = 0
        self._open = ""  # the type of the item that is not done
        self._text: list[str] = []

    def event(self, name: str, /, **told: Any) -> bytes:
        """One event, with its place among all."""
        data = {"type": name, "sequence_number": self._sequence, **told}
        self._sequence += 1
        return sse(encoded(data), name.encode())

    def take(self, said: Said) -> list[bytes]:
        """What is told of something new."""
        self._waiting += self._scores.of(said.piece) or []
        return [event for delta in said.deltas for event in self.of(delta)]

    def end(self, *, cut: bool) -> list[bytes]:
        """What is told when all has come: an answer of nothing is an empty message, and what was open when the answer
        was `cut` is incomplete."""
        events = self.of(Content("")) if not self.items else []
        return [*events, *self.close("incomplete" if cut else "completed")]

    def error(self, refusal: Refusal) -> bytes:
        """What is told of an error; nothing follows."""
        return self.event("error", code=refusal.code, message=refusal.message, param=refusal.param)

    def of(self, delta: Delta) -> list[bytes]:
        """What is told of a delta."""
        if isinstance(delta, Content | Reasoning):
            kind = "message" if isinstance(delta, Content) else "reasoning"
            events = self._in(kind) if self._open != kind else []
            self._text.append(delta.text)
            logs = self._logs(self._waiting)
            self._told += self._waiting
            self._waiting = []
            return [*events, self.event(f"response.{PARTS[kind]}.delta", **self._place, **logs, delta=delta.text)]
        self._waiting = []
        if isinstance(delta, CallBegun):
            events = self.close()
            self._open, self._text = "function_call", []
            item = {"type": "function_call", "id": f"fc_{self.number}_{len(self.items)}", "call_id": delta.id}
            return [*events, self._add({**item, "name": delta.name, "arguments": "", "status": "in_progress"})]
        if isinstance(delta, Arguments):
            self._text.append(delta.text)
            item_id = self.items[-1]["id"]
            where = {"item_id": item_id, "output_index": len(self.items) - 1}
            return [self.event("response.function_call_arguments.delta", **where, delta=delta.text)]
        return self.close()

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def _logs(self, scores: list[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": scores} if self._open == "message" else {}

    def _part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": PARTS[self._open], "text": text}
        return part | {"annotations": [], **self._logs(self._told)} if self._open == "message" else part

    def _add(self, item: dict[str, Any]) -> bytes:
        self.items.append(item)
        return self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)

    def _in(self, kind: str) -> list[bytes]:
        """Begin an item of text."""
        events = self.close()
        self._open, self._text, self._told = kind, [], []
        item: dict[str, Any]
        if kind == "message":
            item = {"type": kind, "id": f"msg_{self.number}_{len(self.items)}", "status": "in_progress"}
            events.append(self._add({**item, "role": "assistant", "content": []}))
        else:
            item = {"type": kind, "id": f"rs_{self.number}_{len(self.items)}", "summary": []}
            events.append(self._add({**item, "content": []}))
        return [*events, self.event("response.content_part.added", **self._place, part=self._part(""))]

    def close(self, status: str = "completed") -> list[bytes]:
        """The item that is open is done."""
        if not self._open:
            return []
        item, text, events = dict(self.items[-1]), "".join(self._text), list[bytes]()
        if self._open == "function_call":
            item |= {"arguments": text, "status": status}
            where = {"item_id": item["id"], "output_index": len(self.items) - 1, "name": item["name"]}
            events.append(self.event("response.function_call_arguments.done", **where, arguments=text))
        else:
            part = self._part(text)
            item["content"] = [part]
            if self._open == "message":
                item["status"] = status
            events.append(
                self.event(f"response.{PARTS[self._open]}.done", **self._place, **self._logs(self._told), text=text)
            )
            events.append(self.event("response.content_part.done", **self._place, part=part))
        self.items[-1], self._open = item, ""
        events.append(self.event("response.output_item.done", output_index=len(self.items) - 1, item=item))
        return events
