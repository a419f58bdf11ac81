"""The application: every route in one list, and what stands before them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from sporelm.serve.access import HEALTH
from sporelm.serve.config import ServeConfig
from sporelm.serve.conversation_engine import EngineAnswers
from sporelm.serve.conversations import tell_of_others
from sporelm.serve.endpoint import Endpoint, json_response
from sporelm.serve.failures import Refusal, shape_for
from sporelm.serve.keys import ApiKey
from sporelm.serve.limits import Limits
from sporelm.serve.models import Opener
from sporelm.serve.routes import (
    anthropic_messages,
    health,
    infer,
    ollama,
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
from sporelm.serve.server import Server
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
    *ollama.ENDPOINTS,
    *ollama_generate.ENDPOINTS,
    *ollama_models.ENDPOINTS,
    *infer.ENDPOINTS,
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
    """Return the endpoints, then those that are reached under a second path: without `/v1`, and `/v1/health`."""
    unversioned = [each.at(each.path.removeprefix("/v1")) for each in endpoints if each.path in UNVERSIONED]
    return [*endpoints, *unversioned, *(each.at(f"/v1{HEALTH}") for each in endpoints if each.path == HEALTH)]


ENDPOINTS: list[Endpoint] = with_aliases(_CANONICAL)


def build_app(config: ServeConfig, open_model: Opener | None = None) -> Starlette:
    """The whole application; `app.state.server` is what it serves. The first model is loaded when it starts.

    Raises RequestError for a configuration that cannot be.
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
    """All routes of a server: the endpoints, the conversations of the web chat, and its page."""
    tell_of_others(server.answer_jobs.store.folder)
    return [
        *(endpoint.route() for endpoint in ENDPOINTS),
        *conversation_routes(server.answer_jobs, owner_of, lambda request: EngineAnswers(server, request.state.key)),
        *web_chat_routes(),
    ]


def owner_of(request: Request) -> str:
    """Whose conversations a request may see."""
    key: ApiKey = request.state.key
    return key.owner


def middleware(server: Server) -> list[Middleware]:
    """What every request passes first: CORS, which answers what browsers ask beforehand, then the limits."""
    found = [Middleware(Limits, config=server.config, access=server.access, counted=server.figures.asked)]
    if server.config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(server.config.cors_origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],  # the official clients send many of their own; none of them opens anything
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
        found.insert(0, cors)
    return found


async def _http_error(request: Request, error: Exception) -> Response:
    """A path that is not there, or a method that it does not have."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        refusal = Refusal(405, f"{path[:100]} does not take {request.method}", code="method_not_allowed")
    else:
        refusal = Refusal(error.status_code, f"there is nothing at {path[:100]!r}: see /docs", code="not_found")
    return json_response(shape_for(path)(refusal), refusal.status, dict(error.headers or {}))
