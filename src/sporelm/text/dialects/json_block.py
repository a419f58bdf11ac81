"""Calls that are JSON between two markers: an array of them, or an object in a line each."""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps


class JsonBlock(Dialect):
    """A subclass names the markers, and says how calls are forced and written. Both formats are parsed.

    opening, closing    what stands around calls
    key                 the key of the arguments
    array               one block holds all calls, between brackets; otherwise each has a block of its own
    """

    opening: str
    closing: str
    key: str = "arguments"
    array: bool = True

    def all_markers(self) -> tuple[str, ...]:
        return (self.opening.strip(), self.closing.strip(), *super().all_markers())

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        if not (yield from read_calls(state)):
            return False
        while True:
            if self.closing and (yield from source.skip(self.closing.strip())):
                return True
            yield from source.space()
            if (yield from source.peek()) != "{" or not (yield from state.attempt(read_calls(state))):
                return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        objects = [f'{{"name": {json.dumps(call.name)}, "{self.key}": {call.arguments}}}' for call in calls]
        if self.array:
            return f"{self.opening}[{', '.join(objects)}]{self.closing}"
        return "".join(f"{self.opening}{each}{self.closing}" for each in objects)

    def build_calls(self, lark: LarkBuilder) -> Expression:
        body = lark.json_call(self.key, many=self.array)
        block = lark.sequence(self.opening, body, self.closing)
        return block if self.array else lark.many(block, "")


class Nemotron(JsonBlock):
    """Nemotron Nano 2 and Llama-Nemotron: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>."""

    name = "nemotron"
    opening, closing = "<TOOLCALL>", "</TOOLCALL>"
    start_markers = (opening,)


class ToolCalls(JsonBlock):
    """Hunyuan, Jamba, Apriel: <tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>; MiniMax-M1: a line for
    each, without brackets."""

    name = "tool_calls"
    opening, closing = "<tool_calls>", "</tool_calls>"
    start_markers = (opening,)


class InternLm(JsonBlock):
    """InternLM2 and 2.5: <|action_start|><|plugin|> and an object, <|action_end|>, one for each call."""

    name = "internlm"
    opening, closing = "<|action_start|><|plugin|>\n", "<|action_end|>"
    key, array = "parameters", False
    start_markers = ("<|action_start|><|plugin|>",)


class GigaChat(JsonBlock):
    """GigaChat 3: one call in an object, as a message of the role "function call"; 3.1: after <|function_call|>."""

    name = "gigachat"
    closing = ""
    start_markers = ("<|function_call|>", "function call<|role_sep|>")
    markers = start_markers
    frame_markers = ("<|message_sep|>",)
    array = False

    def __init__(self, thinking: Thinking | None = None, *, message: bool = False) -> None:
        """message: forced calls are messages."""
        super().__init__(thinking)
        self.opening = "function call<|role_sep|>\n" if message else "<|function_call|>"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence(self.opening, lark.json_call(self.key))


class CommandR(JsonBlock):
    """Command R and R+: Action: and a fence with [{"tool_name": ..., "parameters": {...}}]."""

    name = "command_r"
    opening, closing = "Action:\n```json\n", "\n```"
    start_markers = ("Action:\n```json", "Action: ```json")

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        objects = [f'{{"tool_name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls]
        return f"{self.opening}[{', '.join(objects)}]{self.closing}"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence(self.opening, lark.json_call("parameters", name="tool_name", many=True), self.closing)


class FireFunction(JsonBlock):
    """Firefunction 2: functools[{"name": ..., "arguments": {...}}, ...]."""

    name = "firefunction"
    opening, closing = "functools", ""
    start_markers = (opening,)
