"""A chat's answers as they are read: reasoning is counted in tokens."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.api.completion import Completion, Piece, Timings
from sporelm.api.image_inputs import TakenImages
from sporelm.serve.chat.chat_stream import ChatStream, render_chat
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.routes.openai_chat import ChatMessage
from sporelm.text import ChatTemplate, RenderedPrompt
from sporelm.text.dialects import DIALECTS


class Stream:
    """An answer whose tokens are known, one a piece."""

    has_grammar = False

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        ids = list(range(len(self.tokens)))
        for number, text in enumerate(self.tokens[:-1]):
            yield Piece(text, [number])
        done = Completion("".join(self.tokens), ids, "stop", [7, 8], 1, Timings(0.0, 0.0), 0, None)
        yield Piece(self.tokens[-1], ids[-1:], "stop", done)


class Reading:
    def __init__(self, name: str, prompt: str) -> None:
        self.name, self.prompt = name, prompt

    def parser(self) -> Any:
        return DIALECTS[self.name]().parser(prompt=self.prompt)


@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "thought"),
    [
        ("hermes", "", ["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Hi", "!"], 6),
        ("hermes", "<think>\n", ["Hm", ".", "</", "think>", "Hi"], 4),
        ("hermes", "<think>\n", ["Hm", ".", " so", " on"], 4),
        ("hermes", "", ["Hi", "!"], 0),
        ("hermes", "", ["<", "b", ">", " is text"], 0),
        ("harmony", "", ["<|channel|>analysis<|message|>", "a", "b", "<|end|>", "<|start|>assistant", "Hi"], 4),
    ],
)
def test_tokens_of_reasoning_are_counted(name: str, prompt: str, tokens: list[str], thought: int) -> None:
    chat = ChatStream(None, [Stream(tokens)], Reading(name, prompt))  # type: ignore[arg-type, list-item]
    asyncio.run(chat.collect())
    assert chat.usage.completion_tokens_details.reasoning_tokens == thought
    assert chat.usage.completion_tokens == len(tokens)


def test_an_empty_answer_has_content() -> None:
    assert encode_json(ChatMessage("assistant", "")) == b'{"role":"assistant","content":""}'
    assert encode_json(ChatMessage("assistant", None)) == b'{"role":"assistant","content":null}'


@pytest.mark.parametrize(("source", "is_large"), [("{{ 'x' }}", False), ("{{ 'x ' * 10000 }}", True)])
def test_a_long_prompt_of_a_short_chat_is_large(source: str, is_large: bool) -> None:
    """So that it is tokenized beside the event loop."""

    def take_images(messages: Any, *_: Any) -> TakenImages:
        return TakenImages(messages, [])

    class Rendering:
        llm = SimpleNamespace(isolation=None, can_see=False, take_images=take_images)

        def render(self, messages: Any, pictures: Any, **variables: Any) -> RenderedPrompt:
            return ChatTemplate(source).render(messages)

    call = SimpleNamespace(is_large=False, key=SimpleNamespace(cache_salt=""))
    asyncio.run(render_chat(call, Rendering(), [{"role": "user", "content": "a"}]))  # type: ignore[arg-type]
    assert call.is_large == is_large
