"""/metrics, /openapi.json and /docs: for operators of the server and developers of its clients."""

from starlette.responses import HTMLResponse, Response

from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import encode_json
from sporelm.serve.http.openapi import docs_page, openapi_document
from sporelm.serve.server_metrics import MEDIA_TYPE, exposition

# The page has inline styles and nothing else.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


async def metrics(call: ApiCall, body: None) -> Response:
    """The metrics of the engines and the server, in Prometheus's text format."""
    return Response(exposition(call.server.metrics), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})


def document_json(call: ApiCall) -> bytes:
    """Return the description of this server's endpoints, as JSON."""
    return encode_json(openapi_document(call.server.endpoints, needs_key=bool(call.server.access.keys)))


async def openapi_json(call: ApiCall, body: None) -> Response:
    """This description."""
    return Response(document_json(call), media_type="application/json")


async def docs(call: ApiCall, body: None) -> Response:
    """This description as a page."""
    page = docs_page(document_json(call).decode())
    return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/metrics", metrics, tag="Operations"),
    Endpoint("GET", "/openapi.json", openapi_json, tag="Operations"),
    Endpoint("GET", "/docs", docs, tag="Operations"),
]
