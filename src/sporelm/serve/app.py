"""The application: all routes in one list, and the middleware before them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from sporelm.serve.conversations.answer_generator import AnswerGenerator
from sporelm.serve.conversations.conversation_store import log_other_folder
from sporelm.serve.http.access_control import HEALTH
from sporelm.serve.http.api_errors import ApiError, error_format_for
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import json_response
from sporelm.serve.http.request_limits import RequestLimitsMiddleware
from sporelm.serve.model_pool.model_pool import ModelOpener
from sporelm.serve.routes import (
    anthropic_messages,
    conversation_tokens,
    health,
    infer,
    ollama_chat,
    ollama_generate,
    ollama_models,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    openai_responses,
    operations,
    rerank,
    tokens,
)
from sporelm.serve.routes.conversations import conversation_endpoints, conversation_routes
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.server_state import Server
from sporelm.serve.webui import web_chat_routes

_CANONICAL: list[Endpoint] = [
    *health.ENDPOINTS,
    *openai_models.ENDPOINTS,
    *openai_chat.ENDPOINTS,
    *openai_responses.ENDPOINTS,
    *openai_completions.ENDPOINTS,
    *openai_embeddings.ENDPOINTS,
    *rerank.ENDPOINTS,
    *tokens.ENDPOINTS,
    *anthropic_messages.ENDPOINTS,
    *ollama_chat.ENDPOINTS,
    *ollama_generate.ENDPOINTS,
    *ollama_models.ENDPOINTS,
    *infer.ENDPOINTS,
    *conversation_tokens.ENDPOINTS,
    *operations.ENDPOINTS,
]

# llama-server answers at these paths with and without `/v1`, so clients are configured with either base address.
UNVERSIONED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/{model:path}",
    "/v1/responses",
)


def with_aliases(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the endpoints, then their aliases: paths without `/v1`, and `/v1/health`."""
    unversioned = [each.alias(each.path.removeprefix("/v1")) for each in endpoints if each.path in UNVERSIONED]
    return [*endpoints, *unversioned, *(each.alias(f"/v1{HEALTH}") for each in endpoints if each.path == HEALTH)]


ENDPOINTS: list[Endpoint] = with_aliases(_CANONICAL)


def build_app(config: ServeConfig, open_model: ModelOpener | None = None) -> Starlette:
    """Build the application; `app.state.server` is its `Server`. The first model is loaded when it starts.

    Raises RequestError for an invalid configuration.
    """
    server = Server(config, open_model)
    server.endpoints = [*ENDPOINTS, *conversation_endpoints()]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await server.open()
        yield
        await server.close()

    app = Starlette(
        routes=routes(server),
        lifespan=lifespan,
        middleware=middleware(server),
        exception_handlers={HTTPException: _http_error},
    )
    app.state.server = server
    return app


def routes(server: Server) -> list[BaseRoute]:
    """Return all routes: the endpoints, the conversations of the web chat, and its page."""
    log_other_folder(server.answer_jobs.store.folder)
    return [
        *(endpoint.route() for endpoint in ENDPOINTS),
        *conversation_routes(server.answer_jobs, owner_of, lambda request: AnswerGenerator(server, request.state.key)),
        *web_chat_routes(),
    ]


def owner_of(request: Request) -> str:
    """Return the owner whose conversations a request may use."""
    key: ApiKey = request.state.key
    return key.owner


def middleware(server: Server) -> list[Middleware]:
    """Return the middleware: CORS, which answers preflight requests of browsers, then the limits."""
    image_paths = frozenset(each.path for each in server.endpoints if each.takes_images)
    limits = Middleware(
        RequestLimitsMiddleware,
        config=server.config,
        image_paths=image_paths,
        access=server.access,
        on_response=server.metrics.count_request,
    )
    if not server.config.cors_origins:
        return [limits]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(server.config.cors_origins),
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=["*"],  # the official clients send many of their own; none of them grants anything
        expose_headers=["x-request-id", "request-id", "retry-after"],
    )
    return [cors, limits]


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path, or a method that the path does not have."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        response = ApiError(405, f"{path[:100]} does not accept {request.method}", code="method_not_allowed")
    else:
        response = ApiError(error.status_code, f"nothing found at {path[:100]!r}: see /docs", code="not_found")
    return json_response(error_format_for(path)(response), response.status, dict(error.headers or {}))
