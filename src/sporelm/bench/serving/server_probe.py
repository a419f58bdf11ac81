"""Probes a server with a few requests before the measurement.

The probe finds its model, the request fields that it supports, and the number of words for a prompt of a given length.
"""

import asyncio
import ssl
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from sporelm.bench.serving.event_stream import error_message, find_usage
from sporelm.bench.serving.http_connection import BenchClient, HttpAnswer, ServerDisconnected, connection_failure_reason
from sporelm.bench.serving.http_reader import InvalidHttp
from sporelm.bench.serving.random_prompts import LONG_ANSWER_SUFFIX, RandomPrompts
from sporelm.bench.serving.server_target import ServerTarget
from sporelm.errors import RequestError, safe_repr

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
REFUSED_STATUSES = (400, 422)  # what servers answer to a field that they do not know
NEWER_LENGTH_FIELD = "max_completion_tokens"
MAX_LENGTH_TRIALS = 4  # to find the number of words


@dataclass(frozen=True)
class RequestDialect:
    """The form of requests that a server accepts. `words` make a prompt of `prompt_tokens`, if it counts them."""

    model: str
    endpoint: Endpoint
    new_tokens: int
    temperature: float | None  # None: the server's own
    words: int
    ignore_eos: bool = True
    usage: bool = True
    length: str = "max_tokens"  # the name of the field
    prompt_tokens: int | None = None

    def body(self, prompt: str, new_tokens: int | None = None) -> dict[str, Any]:
        """A request's fields."""
        asked: dict[str, Any] = {"model": self.model}
        if self.endpoint == "chat":
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        asked |= {self.length: new_tokens or self.new_tokens, "stream": True}
        if self.temperature is not None:
            asked["temperature"] = self.temperature
        if self.usage:
            asked["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            asked["ignore_eos"] = True
        return asked

    def prompts(self, seed: int, shared: float) -> RandomPrompts:
        """Prompts of the length that was found out."""
        return RandomPrompts(seed, self.words, shared, "" if self.ignore_eos else LONG_ANSWER_SUFFIX)


@dataclass
class ServerProbe:
    """The requests before the first measurement. Every failure is a RequestError of one line."""

    target: ServerTarget
    client: BenchClient
    timeout: float
    notes: list[str] = field(default_factory=list)

    async def learn(self, wanted: RequestDialect, prompt_tokens: int, seed: int) -> RequestDialect:
        """Find the supported fields, the model if none is named, and the number of words of a prompt."""
        if not wanted.model:
            wanted = replace(wanted, model=await self.first_model())
        wanted, usage = await self.accepted(wanted, seed)
        if not usage.get("prompt_tokens"):
            self.notes.append(
                f"the server does not count tokens: prompts have {wanted.words} words, about as many tokens, and the "
                "answers' tokens are the pieces of text that came"
            )
            return wanted
        return await self.sized(wanted, prompt_tokens, usage["prompt_tokens"], seed)

    async def first_model(self) -> str:
        """Return the first model that the server lists."""
        answer = await self.get("/models")
        try:
            return str(msgspec.json.decode(answer.content)["data"][0]["id"])
        except (msgspec.DecodeError, LookupError, TypeError):
            raise RequestError(
                f"{self.target.url}/models lists no model (HTTP {answer.status}): is --url right? If so, name one with "
                "--model"
            ) from None

    async def accepted(self, wanted: RequestDialect, seed: int) -> tuple[RequestDialect, dict[str, Any]]:
        """The fields that the server takes, and its usage of a first request."""
        form = wanted
        while True:
            answer = await self.answered(form, form.prompts(seed, 0.0).text("first"))
            other = drop_refused_field(form, answer.content) if answer.status in REFUSED_STATUSES else None
            if other is None:
                break
            form = other
        self.check(answer, form)
        if not form.ignore_eos:
            self.notes.append(
                f"the server does not take ignore_eos: answers have at most {form.new_tokens} tokens, and fewer where "
                "the model ends"
            )
        if form.temperature is None:
            self.notes.append("the server takes no temperature: it chooses its own")
        return form, find_usage(answer.events.ending())

    async def sized(self, form: RequestDialect, wanted: int, tokens: int, seed: int) -> RequestDialect:
        """Find the number of words that comes nearest to the wanted number of tokens, as the server counts them."""
        tried = {form.words: tokens}
        for turn in range(MAX_LENGTH_TRIALS - 1):
            words = max(1, interpolate_words(tried, wanted))
            if tokens == wanted or words in tried:
                break
            form = replace(form, words=words)
            answer = await self.answered(form, form.prompts(seed, 0.0).text(f"size {turn}"))
            self.check(answer, form)
            tokens = int(find_usage(answer.events.ending()).get("prompt_tokens") or 0)
            tried[words] = tokens
        words, tokens = min(tried.items(), key=lambda pair: abs(pair[1] - wanted))
        if abs(tokens - wanted) > max(8, wanted // 8):
            self.notes.append(
                f"prompts have about {tokens} tokens, {wanted} were asked for: words and a template came no nearer"
            )
        return replace(form, words=words, prompt_tokens=tokens)

    async def get(self, name: str) -> HttpAnswer:
        return await self.reached(self.target.request(name))

    async def answered(self, form: RequestDialect, prompt: str) -> HttpAnswer:
        """The answer, of one token, to a prompt."""
        return await self.reached(self.target.request(PATHS[form.endpoint], form.body(prompt, 1)))

    async def reached(self, request: bytes) -> HttpAnswer:
        """The answer to a request. Raises RequestError where none comes, or the key is refused."""
        target = self.target
        where = f"the server at {target.origin}"
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self.client.ask(request)
        except TimeoutError:
            raise RequestError(f"{where} did not answer within {self.timeout:g} s (--timeout)") from None
        except ssl.SSLCertVerificationError as reason:
            raise RequestError(
                f"{where} has a certificate that is not trusted: {reason.verify_message}; SSL_CERT_FILE=FILE names "
                "one that is"
            ) from None
        except ssl.SSLError as reason:
            raise RequestError(f"{where} does not speak TLS ({reason.reason}): try http://") from None
        except OSError as reason:
            raise RequestError(
                f"{where} cannot be reached: {connection_failure_reason(reason)}; is it running, and --url right?"
            ) from None
        except InvalidHttp:
            raise RequestError(f"{where} does not speak HTTP: is --url right?") from None
        except ServerDisconnected:
            other = " (or it speaks TLS: try https://)" if target.scheme == "http" else ""
            raise RequestError(f"{where} closed the connection without an answer{other}") from None
        if answer.status in (401, 403):
            advice = "the server does not accept this key" if target.key else "give --api-key, or SPORE_API_KEY"
            advice += "; of NAME:SECRET, as spore serve is told it, send SECRET alone" if ":" in target.key else ""
            raise RequestError(f"{where} wants an API key: {advice} (HTTP {answer.status})")
        return answer

    def check(self, answer: HttpAnswer, form: RequestDialect) -> None:
        """Raise RequestError unless it is a stream."""
        path = f"{self.target.url}{PATHS[form.endpoint]}"
        if answer.status == 404:
            raise RequestError(
                f"{path}: unknown path or model {safe_repr(form.model)}: {error_message(answer.content)}"
            )
        if answer.status != 200:
            raise RequestError(f"{path} answered HTTP {answer.status}: {error_message(answer.content)}")
        if not answer.streamed:
            raise RequestError(f"{path} does not stream its answer, so there is nothing to time")
        if answer.events.error is not None:
            raise RequestError(f"{path} answered with an error: {error_message(answer.events.error)}")


def drop_refused_field(form: RequestDialect, refusal: bytes) -> RequestDialect | None:
    """Return the form of request to try next, after the server refused this one; None if none is left."""
    if NEWER_LENGTH_FIELD.encode() in refusal and form.length != NEWER_LENGTH_FIELD:  # as OpenAI's newer models have it
        return replace(form, length=NEWER_LENGTH_FIELD)
    if b"temperature" in refusal and form.temperature is not None:
        return replace(form, temperature=None)
    if form.ignore_eos:
        return replace(form, ignore_eos=False)
    return replace(form, usage=False) if form.usage else None


def interpolate_words(tried: dict[int, int], wanted: int) -> int:
    """On the line through the last two trials, the number of words that gives the tokens that are wanted. The first
    trial tells more words apart from a template's tokens only by being near, or far off."""
    if len(tried) == 1:
        ((words, tokens),) = tried.items()
        near = abs(tokens - wanted) <= words // 2
        return words + wanted - tokens if near else round(words * wanted / max(1, tokens))
    (words, tokens), (more, others) = list(tried.items())[-2:]
    if others == tokens:
        return more
    return round(more + (wanted - others) * (more - words) / (others - tokens))
