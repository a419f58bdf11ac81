"""How long a model stays loaded after a request: Ollama's `keep_alive`."""

import re
from math import inf
from time import monotonic

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"-?(?:{_PART.pattern})+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def parse_keep_alive(value: str | float | None) -> float | None:
    """Return the seconds of a `keep_alive`: a number, or a text such as "5m" or "1h30m"; negative means forever.

    Raises RequestError.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        return float(value)
    if len(value) <= 64 and _NUMBER.fullmatch(value):
        return float(value)
    if len(value) > 64 or not _DURATION.fullmatch(value):
        raise RequestError(f"keep_alive is {safe_repr(value)}: give seconds, or a time as '5m'; 0 unloads, -1 keeps")
    seconds = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(value))
    return -seconds if value.startswith("-") else seconds


class KeepAlive:
    """The fate of a model when a request has ended, unless other requests use the model then.

    0 unloads it and a negative time keeps it. Other times replace the server's `idle_seconds` once, if it has any.
    """

    def __init__(self, call: ApiCall, name: str, keep_alive: str | float | None) -> None:
        """Must be created before the request acquires the model, so that it is applied after the release.

        Raises RequestError; ApiError: 404 for an unknown model, 403 for a key that may not set `keep_alive`.
        """
        self.call = call
        self.models = call.server.models
        self.name = self.models.spec(name).name
        self.seconds = parse_keep_alive(keep_alive)
        if self.seconds is not None:
            check_may_keep(call)
            call.resources.push_async_callback(self._apply)

    async def load_or_unload(self) -> str:
        """Load or unload the model for a request without a prompt. Return which, as Ollama's `done_reason`."""
        if self.seconds == 0:
            await self._apply()
            return "unload"
        await self.call.model(self.name)
        return "load"

    async def _apply(self) -> None:
        model = self.models.loaded.get(self.name)
        if model is None or model.num_users or self.seconds is None:
            return
        if self.seconds == 0:
            await self.models.unload(model)
        else:
            idle_seconds = self.models.config.idle_seconds
            model.last_used_at = inf if self.seconds < 0 else monotonic() + self.seconds - idle_seconds


def check_may_keep(call: ApiCall) -> None:
    """Raise ApiError, 403, for a key that may not set `keep_alive` (`keep_alive_keys`)."""
    allowed = call.server.config.keep_alive_keys
    if allowed is not None and call.key.owner not in allowed:
        raise ApiError(
            403,
            "keep_alive is not allowed for this API key (keep_alive_keys): leave it out",
            "permission_error",
            "keep_alive_not_allowed",
            param="keep_alive",
        )
