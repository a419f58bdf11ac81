"""/tokenize, /detokenize and /apply-template: the prompts and tokens that a model gets.

The first two support two APIs: that of llama-server, whose text is `content`, and that of vLLM, whose text is `prompt`
or `messages`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from sporelm.api.image_inputs import PromptIds
from sporelm.api.llm import LLM
from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_format import ChatFormat
from sporelm.serve.chat.chat_stream import check_continued, render_chat
from sporelm.serve.chat.image_parts import messages_from_openai
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody
from sporelm.text import RenderedPrompt


class TokenizeRequest(RequestBody, kw_only=True):
    """A text in llama-server's field `content`, or in vLLM's fields `prompt` or `messages`.

    `content` is a text, or a list of texts and token ids, which are joined. BOS and other special tokens around a text
    are added as `add_special` (llama-server) or `add_special_tokens` (vLLM) says; by default only to a `prompt`.
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
    """A token and its text, or its bytes where they are not valid UTF-8."""

    id: int
    piece: str | list[int]


class TokenizeReply(msgspec.Struct, omit_defaults=True):
    """For `content` the tokens alone; for `prompt` and `messages` also their count and the context size."""

    tokens: list[int | TokenPiece]
    count: int | None = None
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody, kw_only=True):
    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool = False


class DetokenizeReply(msgspec.Struct):
    """The text in the formats of llama-server and vLLM.

    content   the texts of the tokens, joined; with the space that some vocabularies put before a text
    prompt    without that space
    """

    prompt: str
    content: str


class TemplateRequest(RequestBody, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateReply(msgspec.Struct):
    prompt: str


async def tokenize(call: ApiCall, body: TokenizeRequest) -> TokenizeReply:
    """The tokens of a text, or of a chat as the model gets it."""
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} are given together: give one of them")
    add_special = body.add_special_tokens if body.add_special is None else body.add_special
    llm = (await call.model(body.model)).llm
    if (given_messages := body.messages) is not None:
        messages = await run_in_thread_if(call.is_large, lambda: messages_from_openai(given_messages))
        prompt = await render_chat(call, ChatFormat(llm, None, None), messages)
        parts: Sequence[str | int | RenderedPrompt] = [prompt]
    elif body.prompt is not None:
        parts = [body.prompt]
        add_special = add_special is None or add_special
    else:
        parts = [body.content] if isinstance(body.content, str) else body.content or []

    def encode() -> TokenizeReply:
        ids = encode_parts(llm, parts, add_special=bool(add_special), parse_special=body.parse_special)
        tokens: list[int | TokenPiece] = list(ids)
        if body.with_pieces:
            tokens = [TokenPiece(token, piece_of(llm, token)) for token in ids]
        strings = llm.tokenizer.pieces(ids) if body.return_token_strs else None
        if body.prompt is None and body.messages is None:
            return TokenizeReply(tokens, token_strs=strings)
        return TokenizeReply(tokens, len(ids), llm.max_context, strings)

    return await run_in_thread_if(call.is_large, encode)


def encode_parts(
    llm: LLM, parts: Sequence[str | int | RenderedPrompt], *, add_special: bool, parse_special: bool
) -> list[int]:
    """Return the ids of texts, rendered chats and ids in a row. Special tokens are added to the first part alone, and
    only if that is a text, as llama-server does.

    Raises RequestError for a text or an id that the vocabulary lacks.
    """
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, int):
            llm.tokenizer.token_bytes(part)  # raises for an id outside the vocabulary
            ids.append(part)
        else:
            llm.check_text_length(str(part))
            if isinstance(part, RenderedPrompt) and part.images:
                ids += ids_with_images(llm, part)
                continue
            is_first = add_special and at == 0
            if isinstance(part, RenderedPrompt):
                if parse_special:
                    ids += llm.tokenizer.encode_prompt(part, add_special_tokens=is_first)
                    continue
                part = part.text
            ids += llm.tokenizer.encode(part, add_special_tokens=is_first, parse_special=parse_special)
    return ids


def ids_with_images(llm: LLM, prompt: RenderedPrompt) -> list[int]:
    """Return the ids of a chat with images, with the vocabulary's token of an image row (0 if it has none) in place of
    each row. Raises ContextOverflow for images that do not fit the context."""
    ids = llm.chat_ids(prompt)
    return ids.to_vocabulary_ids() if isinstance(ids, PromptIds) else ids


def piece_of(llm: LLM, token: int) -> str | list[int]:
    """Return a token's text, or its bytes where they are not valid UTF-8."""
    data = llm.tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(call: ApiCall, body: DetokenizeRequest) -> DetokenizeReply:
    """The text of tokens."""
    llm = (await call.model(body.model)).llm

    def decode() -> DetokenizeReply:
        whole, joined = (
            llm.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens, continues=continues)
            for continues in (False, True)
        )
        return DetokenizeReply(whole, joined)

    return await run_in_thread_if(call.is_large, decode)


async def apply_template(call: ApiCall, body: TemplateRequest) -> TemplateReply:
    """A chat as the text that the model gets; with `continue_final_message` up to the end of the last message, which is
    the assistant's."""
    continue_last = bool(body.continue_final_message)
    check_continued(body.messages, continue_last=continue_last)
    if continue_last and body.add_generation_prompt:
        raise RequestError("add_generation_prompt and continue_final_message are both true: give one of them")
    messages = await run_in_thread_if(call.is_large, lambda: messages_from_openai(body.messages))
    llm = (await call.model(body.model)).llm
    prompt = await render_chat(
        call,
        ChatFormat(llm, body.tools, None),
        messages,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_last=continue_last,
    )
    return TemplateReply(prompt.text)


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", path, handler, body=body, reply=reply, tag="Tokens", takes_images=body is not DetokenizeRequest)
    for path, handler, body, reply in (
        ("/tokenize", tokenize, TokenizeRequest, TokenizeReply),
        ("/v1/tokenize", tokenize, TokenizeRequest, TokenizeReply),
        ("/detokenize", detokenize, DetokenizeRequest, DetokenizeReply),
        ("/v1/detokenize", detokenize, DetokenizeRequest, DetokenizeReply),
        ("/apply-template", apply_template, TemplateRequest, TemplateReply),
    )
]
