"""/health and /ready: whether the server is alive, and whether it would answer."""

import msgspec
from starlette.responses import Response

from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import json_response


class Health(msgspec.Struct):
    """The state of the server (ok, restarting, failing; ready, not ready, ending), and its problems."""

    status: str
    troubles: list[str] = []


async def health(call: ApiCall, body: None) -> Response:
    """200 while the server is alive; 503 while lost ranks are started again (the status is "restarting" then), and when
    an engine has failed or does not finish a step ("failing")."""
    problems = call.server.models.problems()
    status = "restarting" if call.server.models.is_restarting else "failing"
    reply = Health(status, problems) if problems else Health("ok")
    return json_response(reply, 503 if problems else 200, {"cache-control": "no-store"})


async def ready(call: ApiCall, body: None) -> Response:
    """200 when a request would be answered, perhaps after loading its model. 503 with the reasons while the server is
    shutting down, or when an engine has failed or does not finish a step."""
    problems = call.server.readiness_problems()
    status = "ending" if call.server.is_draining else "not ready" if problems else "ready"
    return json_response(Health(status, problems), 200 if status == "ready" else 503, {"cache-control": "no-store"})


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/health", health, reply=Health, tag="Operations"),
    Endpoint("GET", "/ready", ready, reply=Health, tag="Operations"),
]
