"""/v1/chat/completions, as OpenAI's clients speak it."""

from collections.abc import AsyncGenerator
from time import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.chat import Answered, Chat, ChatAsk, Said, begin_chat, goes_on
from sporelm.serve.endpoint import Body, Call, Endpoint, Stream, encoded
from sporelm.serve.events import openai_error, sse
from sporelm.serve.failures import Refusal
from sporelm.serve.forms import answer_form
from sporelm.serve.reading import Arguments, CallBegun, Content, Delta, Reasoning
from sporelm.serve.sampling import SamplingBody, fields_of
from sporelm.serve.scores import TokenLogprob, chat_logprobs
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import Figures, Usage, figures_of


class StreamOptions(Body, kw_only=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(SamplingBody, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # What clients may send and what changes nothing here; docs/server.md says so.
    verbosity: Any = None
    prediction: Any = None
    # What cannot be had, so that it is said in words of its own.
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None


class Function(msgspec.Struct):
    name: str
    arguments: str


class FunctionCall(msgspec.Struct):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(msgspec.Struct, omit_defaults=True):
    role: Literal["assistant", ""] = ""
    content: str | UnsetType | None = UNSET
    reasoning_content: str | None = None
    tool_calls: list[FunctionCall] | None = None


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct):
    index: int
    message: Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: Logprobs | None = None


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: Figures
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None


REFUSED = {
    "functions": "it is the old name of tools: give tools",
    "function_call": "it is the old name of tool_choice: give tools and tool_choice",
    "audio": "no model of this server speaks: leave it out",
    "web_search_options": "this server asks nothing of other sites: leave it out",
    "moderation": "nothing is moderated here: leave it out",
}


def check(body: ChatRequest) -> None:
    """Raise RequestError for what cannot be had."""
    for name, why in REFUSED.items():
        if getattr(body, name) is not None:
            raise RequestError(f"{name} is not taken: {why}")


def ask_of(body: ChatRequest) -> ChatAsk:
    """What a request asks for. Raises RequestError."""
    check(body)
    sampling = fields_of(body)
    if body.n is not None:
        sampling["n"] = body.n
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs is given without logprobs: set logprobs to true")
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
    grammar = answer_form(body.response_format, body.grammar)
    if grammar is not None:
        sampling["grammar"] = grammar
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    wish = body.enable_thinking
    if wish is None and body.thinking is not None:
        wish = body.thinking.get("type") != "disabled"
    if wish is None and body.reasoning_effort == "none":
        wish = False
    if wish is not None:
        variables.setdefault("enable_thinking", wish)
    if body.continue_final_message and not goes_on(body.messages):
        raise RequestError("continue_final_message needs a last message of the assistant with text and without calls")
    if body.add_generation_prompt is not None and body.add_generation_prompt is bool(body.continue_final_message):
        raise RequestError("add_generation_prompt is false with continue_final_message, and true without: leave it out")
    return ChatAsk(
        messages=body.messages,
        goes_on=bool(body.continue_final_message),
        sampling=sampling,
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        variables=variables,
    )


async def chat_completions(call: Call, body: ChatRequest) -> Response | ChatCompletion:
    """The answer to a chat, or several, whole or in pieces."""
    if (body.n or 1) > call.server.config.max_prompts:
        raise Refusal(400, f"n is {body.n}: at most {call.server.config.max_prompts} answers are made (max_prompts)")
    ask = ask_of(body)
    model = await call.model(body.model)
    chat = await begin_chat(call, model, ask)
    number, created = f"chatcmpl-{call.request_id}", int(time())
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        chunks = Chunks(number, created, model, chat, usage=usage, logprobs=bool(body.logprobs))
        return Stream(chunks.all(), "text/event-stream", openai_error, call)
    answers = await chat.whole()
    choices = [_choice(model, chat, at, each, logprobs=bool(body.logprobs)) for at, each in enumerate(answers)]
    figures = figures_of(answers[0].completion)
    return ChatCompletion(
        number, created, model.name, choices, chat.usage, figures, system_fingerprint=model.fingerprint
    )


def _choice(model: ServedModel, chat: Chat, at: int, answered: Answered, *, logprobs: bool) -> Choice:
    reply = answered.reply
    calls = [FunctionCall(each.id, Function(each.name, each.arguments)) for each in reply.calls]
    message = Message(
        "assistant",
        reply.content if reply.content or not calls else None,
        reply.reasoning or None,
        calls or None,
    )
    scores = Logprobs(chat_logprobs(model, chat.streams[at].answer, 0)) if logprobs else None
    return Choice(at, message, answered.finish_reason, scores)  # type: ignore[arg-type]


class Chunks:
    """A chat's answers as server-sent events."""

    def __init__(
        self, number: str, created: int, model: ServedModel, chat: Chat, *, usage: bool, logprobs: bool
    ) -> None:
        self.model, self.chat, self.usage, self.logprobs = model, chat, usage, logprobs
        head = {"id": number, "object": "chat.completion.chunk", "created": created, "model": model.name}
        head["system_fingerprint"] = model.fingerprint
        self._head = encoded(head)[:-1]
        self._tail = b',"usage":null}\n\n' if usage else b"}\n\n"
        self._seen = [0] * len(chat.streams)  # tokens whose log probabilities were told

    async def all(self) -> AsyncGenerator[bytes, None]:
        """Every event."""
        for number in range(len(self.chat.streams)):
            yield self._chunk(number, {"role": "assistant", "content": ""})
        said: AsyncGenerator[Said, None] = self.chat.said()
        async for each in said:
            for event in self._events(each):
                yield event
        if self.usage:
            last = next(each for each in self.chat.completions if each is not None)
            more = {"choices": [], "usage": self.chat.usage, "timings": figures_of(last)}
            yield b"data: " + self._head + b"," + encoded(more)[1:] + b"\n\n"
        yield sse(b"[DONE]")

    def _events(self, said: Said) -> list[bytes]:
        found = []
        scores = self._scores(said)
        for delta in said.deltas:
            if isinstance(delta, Content) and scores is None:
                found.append(self._text(said.number, b"content", delta.text))
            elif (told := delta_of(delta)) is not None:
                found.append(self._chunk(said.number, told, scores))
                scores = None if scores is None else []
        if scores:
            found.append(self._chunk(said.number, {"content": ""}, scores))
        if said.piece.completion is not None:
            found.append(self._chunk(said.number, {}, None, self.chat.finish_reason(said.number)))
        return found

    def _scores(self, said: Said) -> list[TokenLogprob] | None:
        if not self.logprobs:
            return None
        seen = self._seen[said.number]
        self._seen[said.number] += len(said.piece.token_ids)
        return chat_logprobs(self.model, self.chat.streams[said.number].answer, seen, self._seen[said.number])

    def _text(self, number: int, name: bytes, text: str) -> bytes:
        """The chunk of some text: most are these, so they are put together from parts."""
        parts = (
            b"data: ", self._head, b',"choices":[{"index":%d,"delta":{"%s":' % (number, name), encoded(text),
            b'},"logprobs":null,"finish_reason":null}]', self._tail,
        )  # fmt: skip
        return b"".join(parts)

    def _chunk(
        self, number: int, delta: dict[str, Any], scores: list[TokenLogprob] | None = None, reason: str | None = None
    ) -> bytes:
        logprobs = {"content": scores, "refusal": None} if scores is not None else None
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return b"data: " + self._head + b',"choices":[' + encoded(choice) + b"]" + self._tail


def delta_of(delta: Delta) -> dict[str, Any] | None:
    """Something new, as a chunk's `delta`; None for the end of a call, which has none."""
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallBegun):
        function = {"name": delta.name, "arguments": ""}
        call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
        return {"tool_calls": [call]}
    if isinstance(delta, Arguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return None


ENDPOINTS: list[Endpoint] = [
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        body=ChatRequest,
        reply=ChatCompletion,
        streams="text/event-stream",
    )
]
