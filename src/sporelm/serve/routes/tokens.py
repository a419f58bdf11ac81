"""/tokenize, /detokenize and /apply-template: what the model is shown of a text, and what its tokens say."""

from typing import Any

import msgspec

from sporelm.serve.answering import in_thread_if
from sporelm.serve.chat import rendered
from sporelm.serve.endpoint import Body, Call, Endpoint
from sporelm.serve.reading import Reading


class TokenizeRequest(Body, kw_only=True):
    """`prompt` and `content` are two names of the text."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    return_token_strs: bool = False
    with_pieces: bool = False


class TokenizeReply(msgspec.Struct):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(Body, kw_only=True):
    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool = False


class DetokenizeReply(msgspec.Struct):
    """The text, under both names that clients know."""

    prompt: str
    content: str


class TemplateRequest(Body, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateReply(msgspec.Struct):
    prompt: str


async def tokenize(call: Call, body: TokenizeRequest) -> TokenizeReply:
    """The tokens of a text, or of a chat as the model is shown it."""
    llm = (await call.model(body.model)).llm.llm
    if body.messages is not None:
        text, special = await rendered(call, Reading(llm, None, None), body.messages), False
    else:
        text, special = body.prompt if body.prompt is not None else body.content or "", True
    if body.add_special_tokens is not None:
        special = body.add_special_tokens
    llm.check_readable(text)

    def read() -> TokenizeReply:
        ids = llm.tokenizer.encode(text, add_special_tokens=special, parse_special=body.parse_special)
        pieces = llm.tokenizer.pieces(ids) if body.return_token_strs or body.with_pieces else None
        return TokenizeReply(ids, len(ids), llm.max_context, pieces)

    return await in_thread_if(call.large, read)


async def detokenize(call: Call, body: DetokenizeRequest) -> DetokenizeReply:
    """The text of tokens."""
    llm = (await call.model(body.model)).llm.llm
    text = await in_thread_if(
        call.large,
        lambda: llm.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens),
    )
    return DetokenizeReply(text, text)


async def apply_template(call: Call, body: TemplateRequest) -> TemplateReply:
    """A chat as the text that the model is shown."""
    llm = (await call.model(body.model)).llm.llm
    reading = Reading(llm, body.tools, None)
    text = await rendered(
        call, reading, body.messages, body.chat_template_kwargs, add_generation_prompt=body.add_generation_prompt
    )
    return TemplateReply(text)


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        path,
        handler,
        body=body,
        reply=reply,
        tag="Tokens",
    )
    for path, handler, body, reply in (
        ("/tokenize", tokenize, TokenizeRequest, TokenizeReply),
        ("/v1/tokenize", tokenize, TokenizeRequest, TokenizeReply),
        ("/detokenize", detokenize, DetokenizeRequest, DetokenizeReply),
        ("/v1/detokenize", detokenize, DetokenizeRequest, DetokenizeReply),
        ("/apply-template", apply_template, TemplateRequest, TemplateReply),
    )
]
