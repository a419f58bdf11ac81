"""Ollama's API of models and embeddings: /api/tags, /api/show, /api/ps, /api/version, /api/pull and /api/embed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from math import isinf
from time import monotonic, perf_counter_ns, time
from typing import Any

import msgspec
from starlette.responses import Response

from sporelm import __version__
from sporelm.api.sampling_params import SamplingParams
from sporelm.errors import SporeError
from sporelm.files.store import resolve
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.chat.chat_format import ChatFormat
from sporelm.serve.chat.ollama_options import model_name_from_ollama, sampling_from_options
from sporelm.serve.chat.ollama_replies import NDJSON, ollama_error_line
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError, model_load_error, ollama_error_body
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody, encode_json
from sporelm.serve.http.path_redaction import spec_paths
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.serve.model_pool.keep_alive import KeepAlive
from sporelm.serve.model_pool.model_info import ModelInfo, read_model_info
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.serve.routes.openai_completions import prompt_id_lists
from sporelm.serve.routes.openai_embeddings import check_num_texts, embed_prompts
from sporelm.serve.routes.openai_models import rfc3339
from sporelm.serve.serve_config import ModelSpec
from sporelm.text.fim_tokens import find_fim_tokens

NEVER = "2318-01-01T00:00:00Z"  # the time at which a model is unloaded that stays forever


class OllamaModelDetails(msgspec.Struct):
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""


class OllamaModel(msgspec.Struct, omit_defaults=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaModelDetails
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class OllamaModelList(msgspec.Struct):
    models: list[OllamaModel]


class VersionReply(msgspec.Struct):
    version: str


class ShowRequest(RequestBody, kw_only=True):
    model: str = ""
    name: str = ""
    verbose: bool = False


class ShowReply(msgspec.Struct):
    template: str
    parameters: str
    modelfile: str
    license: str
    details: OllamaModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class PullRequest(RequestBody, kw_only=True):
    model: str = ""
    name: str = ""
    stream: bool = True
    insecure: bool = False


class PullStatus(msgspec.Struct):
    status: str


class EmbedRequest(RequestBody, kw_only=True):
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


class LegacyEmbedRequest(RequestBody, kw_only=True):
    prompt: str
    model: str = ""
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class LegacyEmbedReply(msgspec.Struct):
    embedding: list[float]


NO_INFO = ModelInfo("", "", "", 0, 0, 0.0, "", "", {})  # of a model whose files are missing or damaged


async def model_info(spec: ModelSpec, *, all_arrays: bool = False) -> ModelInfo:
    """Return the facts in a model's files."""
    return await asyncio.to_thread(read_model_info, spec, all_arrays=all_arrays) or NO_INFO


def model_details(info: ModelInfo) -> OllamaModelDetails:
    """Return the facts in a model's files in Ollama's terms."""
    families = [info.family] if info.family else []
    size = info.parameter_size if info.num_parameters else ""
    return OllamaModelDetails(info.kind, info.family, families, size, info.quantization)


async def list_entry(call: ApiCall, spec: ModelSpec, *, is_running: bool = False) -> OllamaModel:
    """Return the list's entry of a model without loading it."""
    info = await model_info(spec)
    modified = rfc3339(info.modified or call.server.started_at)
    entry = OllamaModel(spec.name, spec.name, modified, info.nbytes, info.digest, model_details(info))
    model = call.server.models.loaded.get(spec.name)
    if is_running and model is not None:
        entry.size = model.nbytes
        entry.size_vram = 0
        entry.expires_at = unload_time(call, model)
        entry.context_length = model.llm.max_context
    return entry


def unload_time(call: ApiCall, model: ServedModel) -> str:
    """Return when a model will be unloaded if it is not used again."""
    idle_seconds = call.server.config.idle_seconds
    if not idle_seconds or isinf(model.last_used_at):
        return NEVER
    unused_since = 0.0 if model.num_users else model.last_used_at - monotonic()
    return rfc3339(time() + max(0.0, unused_since + idle_seconds))


async def tags(call: ApiCall, body: None) -> OllamaModelList:
    """All models of this server."""
    return OllamaModelList([await list_entry(call, spec) for spec in call.server.config.models])


async def running(call: ApiCall, body: None) -> OllamaModelList:
    """The loaded models."""
    loaded = call.server.models.loaded
    specs = [spec for spec in call.server.config.models if spec.name in loaded]
    return OllamaModelList([await list_entry(call, spec, is_running=True) for spec in specs])


async def version(call: ApiCall, body: None) -> VersionReply:
    """The version of this server, not one of Ollama."""
    return VersionReply(__version__)


async def show(call: ApiCall, body: ShowRequest) -> ShowReply:
    """A model's details; the model is loaded. With `verbose` they include the long arrays of its metadata."""
    model = await call.model(model_name_from_ollama(call.server.models, body.model or body.name))
    info = await model_info(call.server.models.spec(model.name), all_arrays=body.verbose)
    template = model.llm.tokenizer.chat_template or ""
    parameters = default_parameters(model)
    lines = [f"FROM {model.name}", f'TEMPLATE """{template}"""', *(f"PARAMETER {line}" for line in parameters)]
    return ShowReply(
        template=template,
        parameters="\n".join(parameters),
        modelfile="\n".join(lines),
        license=info.license,
        details=model_details(info),
        model_info=dict(info.metadata),
        capabilities=capabilities(model),
        modified_at=rfc3339(info.modified or model.loaded_at),
    )


def default_parameters(model: ServedModel) -> list[str]:
    """Return the parameters of requests that set none, one a line."""
    llm = model.llm
    params = SamplingParams()
    stops = [llm.tokenizer.id_to_piece(token) for token in sorted(llm.tokenizer.stop_ids)]
    values = {
        "num_ctx": llm.max_context,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
    }
    return [
        *(f"{name:<30} {value}" for name, value in values.items()),
        *(f"{'stop':<30} {json.dumps(text, ensure_ascii=False)}" for text in stops if text),
    ]


def capabilities(model: ServedModel) -> list[str]:
    """Return a model's capabilities in Ollama's terms: `tools` and `thinking` if its template supports them, `vision`
    if it reads images, `insert` if it has tokens for fill-in-the-middle."""
    llm = model.llm
    if not llm.can_generate:
        return ["embedding"]
    names = ["completion", "embedding"]
    if llm.tokenizer.chat_template is not None:
        if llm.chat_template(tools=True).supports_tools:
            names.append("tools")
        if ChatFormat(llm, None, None).supports_reasoning:
            names.append("thinking")
        if model.can_see:
            names.append("vision")
    return [*names, "insert"] if find_fim_tokens(llm.tokenizer) is not None else names


async def pull(call: ApiCall, body: PullRequest) -> Response | PullStatus:
    """Download a model of this server into the store. Other models are refused: clients may not fill its disk."""
    models = call.server.models
    name = model_name_from_ollama(models, body.model or body.name)
    if name and name not in models.specs:  # even if `any_model_name` lets other requests use any name
        message = models.unknown_model(name).message
        raise ApiError(404, f"{message}; only these can be pulled. Add others with --model")
    spec = models.spec(name)

    async def fetch() -> None:
        try:
            await asyncio.to_thread(resolve, spec.path)
        except SporeError as error:
            raise model_load_error(spec.name, spec_paths(spec), error) from error

    async def lines() -> AsyncGenerator[bytes, None]:
        yield encode_json(PullStatus("pulling manifest")) + b"\n"
        await fetch()
        yield encode_json(PullStatus("success")) + b"\n"

    if body.stream:
        return StreamedResponse(lines(), NDJSON, ollama_error_line, call)
    await fetch()
    return PullStatus("success")


async def embed(call: ApiCall, body: EmbedRequest) -> EmbedReply:
    """A vector of length 1 for each text. Texts that are too long are refused, never truncated."""
    start = perf_counter_ns()
    check_num_texts(call, body.input)
    name = model_name_from_ollama(call.server.models, body.model)
    KeepAlive(call, name, body.keep_alive)
    model = await call.model(name)
    llm = model.llm
    sampling_from_options(body.options or {}, llm.max_context)  # checks them
    prompts = await run_in_thread_if(call.is_large, lambda: prompt_id_lists(body.input, llm.embed_ids, "input"))
    vectors = await embed_prompts(model, prompts, None)
    if body.dimensions is not None and body.dimensions != vectors.shape[1]:
        raise ApiError(400, f"dimensions is {body.dimensions}: vectors of {model.name} have {vectors.shape[1]}")
    num_tokens = sum(map(len, prompts))
    return EmbedReply(model.name, vectors.tolist(), perf_counter_ns() - start, 0, num_tokens)


async def legacy_embed(call: ApiCall, body: LegacyEmbedRequest) -> LegacyEmbedReply:
    """A vector for one text: the API before /api/embed."""
    request = EmbedRequest(input=body.prompt, model=body.model, options=body.options, keep_alive=body.keep_alive)
    reply = await embed(call, request)
    return LegacyEmbedReply(reply.embeddings[0])


def _endpoint(method: str, path: str, handler: Any, **fields: Any) -> Endpoint:
    return Endpoint(method, path, handler, error_format=ollama_error_body, tag="Ollama", **fields)


ENDPOINTS: list[Endpoint] = [
    _endpoint("GET", "/api/tags", tags, reply=OllamaModelList),
    _endpoint("GET", "/api/ps", running, reply=OllamaModelList),
    _endpoint("GET", "/api/version", version, reply=VersionReply),
    _endpoint("POST", "/api/show", show, body=ShowRequest, reply=ShowReply),
    _endpoint("POST", "/api/pull", pull, body=PullRequest, reply=PullStatus, stream_media_type=NDJSON),
    _endpoint("POST", "/api/embed", embed, body=EmbedRequest, reply=EmbedReply),
    _endpoint("POST", "/api/embeddings", legacy_embed, body=LegacyEmbedRequest, reply=LegacyEmbedReply),
]
