"""/tokenize, /detokenize and /apply-template: what the model is shown of a text, and what its tokens say.

The first two speak two dialects: that of llama-server, whose text is `content`, and that of vLLM, whose text is
`prompt` or `messages`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from sporelm.api.llm import LLM
from sporelm.errors import RequestError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.chat import goes_on, rendered
from sporelm.serve.endpoint import Body, Call, Endpoint
from sporelm.serve.reading import Reading
from sporelm.text import RenderedPrompt


class TokenizeRequest(Body, kw_only=True):
    """A text as llama-server takes it, `content`, or as vLLM does, `prompt` or `messages`.

    `content` is a text, or a list of texts and token ids, which are joined. BOS and other tokens that belong around a
    text are added as `add_special` (llama-server) or `add_special_tokens` (vLLM) says; by default to a `prompt` alone.
    """

    model: str | None = None
    content: str | list[str | int] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool = False


class TokenPiece(msgspec.Struct):
    """A token and its text, or the bytes of it where they are not valid UTF-8."""

    id: int
    piece: str | list[int]


class TokenizeReply(msgspec.Struct, omit_defaults=True):
    """To `content` the tokens alone; to `prompt` and `messages` with their count and the context's size."""

    tokens: list[int | TokenPiece]
    count: int | None = None
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class DetokenizeRequest(Body, kw_only=True):
    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool = False


class DetokenizeReply(msgspec.Struct):
    """The text as llama-server and as vLLM write it.

    content   the texts of the tokens, joined; with the space that some vocabularies put before a text
    prompt    without that space
    """

    prompt: str
    content: str


class TemplateRequest(Body, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateReply(msgspec.Struct):
    prompt: str


async def tokenize(call: Call, body: TokenizeRequest) -> TokenizeReply:
    """The tokens of a text, or of a chat as the model is shown it."""
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} are given together: give one of them")
    special = body.add_special_tokens if body.add_special is None else body.add_special
    llm = (await call.model(body.model)).llm.llm
    if body.messages is not None:
        parts: Sequence[str | int | RenderedPrompt] = [await rendered(call, Reading(llm, None, None), body.messages)]
    elif body.prompt is not None:
        parts, special = [body.prompt], True if special is None else special
    else:
        parts = [body.content] if isinstance(body.content, str) else body.content or []

    def read() -> TokenizeReply:
        ids = ids_of(llm, parts, special=bool(special), parse_special=body.parse_special)
        tokens: list[int | TokenPiece] = list(ids)
        if body.with_pieces:
            tokens = [TokenPiece(token, piece_of(llm, token)) for token in ids]
        strings = llm.tokenizer.pieces(ids) if body.return_token_strs else None
        if body.prompt is None and body.messages is None:
            return TokenizeReply(tokens, token_strs=strings)
        return TokenizeReply(tokens, len(ids), llm.max_context, strings)

    return await in_thread_if(call.large, read)


def ids_of(llm: LLM, parts: Sequence[str | int | RenderedPrompt], *, special: bool, parse_special: bool) -> list[int]:
    """Return the ids of texts, rendered chats and ids in a row; a `special` token is put before the first one if
    that is no id, as llama-server does. Raises RequestError for a text or an id that the vocabulary lacks."""
    found: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            llm.tokenizer.token_bytes(part)  # raises for an id outside of the vocabulary
            found.append(part)
        else:
            llm.check_readable(str(part))
            first = special and at == 0
            if isinstance(part, RenderedPrompt):
                if parse_special:
                    found += llm.tokenizer.encode_prompt(part, add_special_tokens=first)
                    continue
                part = part.text
            found += llm.tokenizer.encode(part, add_special_tokens=first, parse_special=parse_special)
    return found


def piece_of(llm: LLM, token: int) -> str | list[int]:
    """Return a token's text, or its bytes where they are not valid UTF-8."""
    data = llm.tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(call: Call, body: DetokenizeRequest) -> DetokenizeReply:
    """The text of tokens."""
    llm = (await call.model(body.model)).llm.llm

    def read() -> DetokenizeReply:
        whole, joined = (
            llm.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens, continues=continues)
            for continues in (False, True)
        )
        return DetokenizeReply(whole, joined)

    return await in_thread_if(call.large, read)


async def apply_template(call: Call, body: TemplateRequest) -> TemplateReply:
    """A chat as the text that the model is shown; with `continue_final_message` up to the end of the last message,
    which is the assistant's."""
    continues = bool(body.continue_final_message)
    if continues and not goes_on(body.messages):
        raise RequestError("continue_final_message needs a last message of the assistant with text and without calls")
    if continues and body.add_generation_prompt:
        raise RequestError("add_generation_prompt and continue_final_message are both true: give one of them")
    llm = (await call.model(body.model)).llm.llm
    prompt = await rendered(
        call,
        Reading(llm, body.tools, None),
        body.messages,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        goes_on=continues,
    )
    return TemplateReply(prompt.text)


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
