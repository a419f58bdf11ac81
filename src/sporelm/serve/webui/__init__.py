"""The web chat's static files, and the routes that serve them: `/` and `/webui/...`, which hold no secret.

The page asks for nothing from outside, runs no inline script and sets no inline style; the headers hold it to that.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # asked for again each time, and answered with 304 where nothing changed
}


class _Files(StaticFiles):
    """The kinds of files that a browser needs, each with its type, whatever this system's tables say."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        kind = KINDS.get(Path(path).suffix)
        if kind is None or Path(path).name.startswith("."):
            return Response("not found\n", 404, media_type="text/plain")
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            response.headers["content-type"] = kind
        response.headers.update(HEADERS)
        if path.endswith(".woff2"):
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def web_chat_routes() -> list[BaseRoute]:
    """`/` and `/webui/...`: to be served without a key, for it is in this page that one is entered."""
    files = _Files(directory=FOLDER)

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index, methods=["GET"]), Mount("/webui", files)]
