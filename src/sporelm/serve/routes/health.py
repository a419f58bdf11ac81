"""/health and /ready: whether the server lives, and whether it would answer."""

import msgspec
from starlette.responses import Response

from sporelm.serve.endpoint import Call, Endpoint, json_response


class Health(msgspec.Struct):
    """How the server is."""

    status: str
    troubles: list[str] = []


async def health(call: Call, body: None) -> Response:
    """200 while the server lives, 503 when an engine has failed or does not come to the end of a step."""
    troubles = call.server.models.troubles()
    told = Health("failing", troubles) if troubles else Health("ok")
    return json_response(told, 503 if troubles else 200, {"cache-control": "no-store"})


async def ready(call: Call, body: None) -> Response:
    """200 when a request would be answered, its model perhaps being loaded first; 503 with the reasons while the server
    is ending, or an engine has failed or does not come to the end of a step."""
    troubles = call.server.obstacles()
    status = "ending" if call.server.draining else "not ready" if troubles else "ready"
    return json_response(Health(status, troubles), 200 if status == "ready" else 503, {"cache-control": "no-store"})


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/health", health, reply=Health, tag="Operations"),
    Endpoint("GET", "/ready", ready, reply=Health, tag="Operations"),
]
