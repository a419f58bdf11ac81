"""/metrics, /openapi.json and /docs: for those who run the server, and those who program for it."""

from starlette.responses import HTMLResponse, Response

from sporelm.serve import openapi
from sporelm.serve.endpoint import Call, Endpoint, encoded
from sporelm.serve.metrics import MEDIA_TYPE, exposed

# The page has a style of its own and nothing else.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


async def metrics(call: Call, body: None) -> Response:
    """What the engines and the server have counted, in Prometheus's text format."""
    return Response(exposed(call.server.figures), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})


def described(call: Call) -> bytes:
    """The description of this server's endpoints, as JSON."""
    return encoded(openapi.document(call.server.endpoints, keys=bool(call.server.access.keys)))


async def description(call: Call, body: None) -> Response:
    """This description."""
    return Response(described(call), media_type="application/json")


async def docs(call: Call, body: None) -> Response:
    """The description as a page."""
    page = openapi.page(described(call).decode())
    return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/metrics", metrics, tag="Operations"),
    Endpoint("GET", "/openapi.json", description, tag="Operations"),
    Endpoint("GET", "/docs", docs, tag="Operations"),
]
