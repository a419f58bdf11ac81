"""/api/tags, /api/show, /api/ps, /api/version, /api/pull and /api/embed, as Ollama's clients speak them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from math import isinf
from time import monotonic, perf_counter_ns, time
from typing import Any

import msgspec
from starlette.responses import Response

from sporelm import __version__
from sporelm.api.params import SamplingParams
from sporelm.errors import SporeError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.config import ModelSpec
from sporelm.serve.endpoint import Body, Call, Endpoint, Stream, encoded
from sporelm.serve.failures import Refusal, ollama_shape
from sporelm.serve.keeping import Keeping
from sporelm.serve.model_facts import Facts, facts_of
from sporelm.serve.ollama_options import named, translated
from sporelm.serve.ollama_replies import NDJSON, error_line
from sporelm.serve.places import unusable
from sporelm.serve.reading import Reading
from sporelm.serve.routes.openai_completions import prompts_of
from sporelm.serve.routes.openai_embeddings import check_count, embedded
from sporelm.serve.routes.openai_models import when
from sporelm.serve.served_model import ServedModel
from sporelm.text.filling import gap_tokens
from sporelm.weights.store import resolve

FOREVER = "2318-01-01T00:00:00Z"  # when a model goes that is never unloaded


class Details(msgspec.Struct):
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""


class Tag(msgspec.Struct, omit_defaults=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class Tags(msgspec.Struct):
    models: list[Tag]


class Version(msgspec.Struct):
    version: str


class ShowRequest(Body, kw_only=True):
    model: str = ""
    name: str = ""
    verbose: bool = False


class Shown(msgspec.Struct):
    template: str
    parameters: str
    modelfile: str
    license: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class PullRequest(Body, kw_only=True):
    model: str = ""
    name: str = ""
    stream: bool = True
    insecure: bool = False


class Status(msgspec.Struct):
    status: str


class EmbedRequest(Body, kw_only=True):
    input: str | list[str | int | list[int]]
    model: str = ""
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class EmbedReply(msgspec.Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedRequest(Body, kw_only=True):
    prompt: str
    model: str = ""
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OldEmbedReply(msgspec.Struct):
    embedding: list[float]


UNKNOWN = Facts("", "", "", 0, 0, 0.0, "", "", {})  # of a model that is not fetched yet, or broken


async def known(spec: ModelSpec, *, whole: bool = False) -> Facts:
    """What a model's files say."""
    return await asyncio.to_thread(facts_of, spec, whole=whole) or UNKNOWN


def details(facts: Facts) -> Details:
    """The same in Ollama's words."""
    families = [facts.family] if facts.family else []
    return Details(facts.kind, facts.family, families, facts.size if facts.parameters else "", facts.quantization)


async def tag(call: Call, spec: ModelSpec, *, running: bool = False) -> Tag:
    """What is known of a model without loading it."""
    facts = await known(spec)
    modified = when(facts.modified or call.server.began)
    found = Tag(spec.name, spec.name, modified, facts.nbytes, facts.digest, details(facts))
    model = call.server.models.loaded.get(spec.name)
    if running and model is not None:
        found.size, found.size_vram = model.nbytes, 0
        found.expires_at, found.context_length = expiry(call, model), model.llm.llm.max_context
    return found


def expiry(call: Call, model: ServedModel) -> str:
    """When a model will be unloaded if nobody asks for it."""
    idle = call.server.config.idle_seconds
    if not idle or isinf(model.used_at):
        return FOREVER
    return when(time() + max(0.0, (0.0 if model.users else model.used_at - monotonic()) + idle))


async def tags(call: Call, body: None) -> Tags:
    """All models of this server."""
    return Tags([await tag(call, spec) for spec in call.server.config.models])


async def running(call: Call, body: None) -> Tags:
    """The models that are loaded."""
    loaded = call.server.models.loaded
    specs = [spec for spec in call.server.config.models if spec.name in loaded]
    return Tags([await tag(call, spec, running=True) for spec in specs])


async def version(call: Call, body: None) -> Version:
    """The version of this server, which is no version of Ollama's."""
    return Version(__version__)


async def show(call: Call, body: ShowRequest) -> Shown:
    """What a model is; it is loaded for that. With `verbose` the long arrays of its metadata too."""
    model = await call.model(named(call.server.models, body.model or body.name))
    facts = await known(call.server.models.spec(model.name), whole=body.verbose)
    template, parameters = model.llm.llm.tokenizer.chat_template or "", defaults(model)
    lines = [f"FROM {model.name}", f'TEMPLATE """{template}"""', *(f"PARAMETER {line}" for line in parameters)]
    return Shown(
        template=template,
        parameters="\n".join(parameters),
        modelfile="\n".join(lines),
        license=facts.license,
        details=details(facts),
        model_info=dict(facts.info),
        capabilities=capabilities(model),
        modified_at=when(facts.modified or model.loaded_at),
    )


def defaults(model: ServedModel) -> list[str]:
    """What holds where a request does not say otherwise, a line each."""
    llm, params = model.llm.llm, SamplingParams()
    ends = [llm.tokenizer.id_to_piece(token) for token in sorted(llm.tokenizer.stop_ids)]
    found = {"num_ctx": llm.max_context, "temperature": params.temperature, "top_k": params.top_k}
    return [
        *(f"{name:<30} {value}" for name, value in {**found, "top_p": params.top_p}.items()),
        *(f"{'stop':<30} {json.dumps(text, ensure_ascii=False)}" for text in ends if text),
    ]


def capabilities(model: ServedModel) -> list[str]:
    """What a model can do of what Ollama has words for: `tools` and `thinking` if its template knows of them, `insert`
    if it was made to fill gaps."""
    llm = model.llm.llm
    if not llm.generates:
        return ["embedding"]
    found = ["completion", "embedding"]
    if llm.tokenizer.chat_template is not None:
        if llm.chat_template(tools=True).takes_tools:
            found.append("tools")
        if Reading(llm, None, None).thinks:
            found.append("thinking")
    return [*found, "insert"] if gap_tokens(llm.tokenizer) is not None else found


async def pull(call: Call, body: PullRequest) -> Response | Status:
    """Fetch a model of this server into the store, if it is not there. What the server was not told of is not fetched:
    nobody who may ask for answers may fill its disk."""
    name, models = named(call.server.models, body.model or body.name), call.server.models
    if name and name not in models.specs:  # not served by the first model, as other requests may be: nothing is fetched
        told = models.unknown(name).message
        raise Refusal(404, f"{told}; only these can be pulled, and others be added with --model")
    spec = models.spec(name)

    async def fetch() -> None:
        try:
            await asyncio.to_thread(resolve, spec.path)
        except SporeError as error:
            raise unusable(spec, error) from error

    async def lines() -> AsyncGenerator[bytes, None]:
        yield encoded(Status("pulling manifest")) + b"\n"
        await fetch()
        yield encoded(Status("success")) + b"\n"

    if body.stream:
        return Stream(lines(), NDJSON, error_line, call)
    await fetch()
    return Status("success")


async def embed(call: Call, body: EmbedRequest) -> EmbedReply:
    """A vector of length 1 for each text. Texts that are too long are refused, never cut."""
    began = perf_counter_ns()
    check_count(call, body.input)
    name = named(call.server.models, body.model)
    Keeping(call, name, body.keep_alive)
    model = await call.model(name)
    llm = model.llm.llm
    translated(body.options or {}, llm.max_context)
    prompts = await in_thread_if(call.large, lambda: prompts_of(body.input, llm, llm.embed_ids))
    vectors = await embedded(call, model, prompts, None)
    if body.dimensions is not None and body.dimensions != vectors.shape[1]:
        raise Refusal(400, f"dimensions is {body.dimensions}: vectors of {model.name} have {vectors.shape[1]}")
    count = sum(map(len, prompts))
    return EmbedReply(model.name, vectors.tolist(), perf_counter_ns() - began, 0, count)


async def old_embed(call: Call, body: OldEmbedRequest) -> OldEmbedReply:
    """A vector for one text, as clients asked for it before /api/embed."""
    made = await embed(
        call, EmbedRequest(input=body.prompt, model=body.model, options=body.options, keep_alive=body.keep_alive)
    )
    return OldEmbedReply(made.embeddings[0])


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/api/tags", tags, reply=Tags, shape=ollama_shape, tag="Ollama"),
    Endpoint("GET", "/api/ps", running, reply=Tags, shape=ollama_shape, tag="Ollama"),
    Endpoint("GET", "/api/version", version, reply=Version, shape=ollama_shape, tag="Ollama"),
    Endpoint("POST", "/api/show", show, body=ShowRequest, reply=Shown, shape=ollama_shape, tag="Ollama"),
    Endpoint(
        "POST", "/api/pull", pull, body=PullRequest, reply=Status, streams=NDJSON, shape=ollama_shape, tag="Ollama"
    ),
    Endpoint("POST", "/api/embed", embed, body=EmbedRequest, reply=EmbedReply, shape=ollama_shape, tag="Ollama"),
    Endpoint(
        "POST",
        "/api/embeddings",
        old_embed,
        body=OldEmbedRequest,
        reply=OldEmbedReply,
        shape=ollama_shape,
        tag="Ollama",
    ),
]
