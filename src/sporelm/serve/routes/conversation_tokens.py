"""/api/ui/tokens: how many tokens a chat of the web chat has, whose pictures are stored already."""

import asyncio
from typing import Any, Literal

import msgspec

from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_format import ChatFormat
from sporelm.serve.chat.chat_stream import render_chat
from sporelm.serve.chat.image_parts import text_part
from sporelm.serve.conversations.conversation_types import ImageId
from sporelm.serve.conversations.stored_images import ImageRef
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody


class CountedMessage(RequestBody, kw_only=True):
    """A message with the ids of its pictures, which stand before its text."""

    role: Literal["system", "user", "assistant"]
    content: str
    images: list[ImageId] = []


class CountRequest(RequestBody, kw_only=True):
    messages: list[CountedMessage]
    model: str | None = None


class CountReply(msgspec.Struct):
    """The number of tokens of the prompt, and the size of the model's context."""

    count: int
    max_model_len: int


async def count_tokens(call: ApiCall, body: CountRequest) -> CountReply:
    """The number of tokens of a chat with stored pictures, as the model gets it."""
    call.check_chat_size(len(body.messages), None)
    llm = (await call.model(body.model)).llm
    store = call.server.answer_jobs.store
    messages = await asyncio.to_thread(store.with_images, call.key.owner, [_message(each) for each in body.messages])
    prompt = await render_chat(call, ChatFormat(llm, None, None), messages)
    return CountReply(len(await run_in_thread_if(call.is_large, lambda: llm.chat_ids(prompt))), llm.max_context)


def _message(message: CountedMessage) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.content}
    pictures = [{"type": "image", "image": ImageRef(each), "path": f"image {each[:12]}"} for each in message.images]
    text = [text_part(message.content)] if message.content else []
    return {"role": message.role, "content": [*pictures, *text]}


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", "/api/ui/tokens", count_tokens, body=CountRequest, reply=CountReply, tag="Conversations")
]
