"""How long a model stays after a request, as Ollama's `keep_alive` says."""

import re
from math import inf
from time import monotonic

from sporelm.errors import RequestError, shown
from sporelm.serve.endpoint import Call
from sporelm.serve.failures import Refusal

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_WHOLE = re.compile(rf"-?(?:{_PART.pattern})+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def seconds_of(value: str | float | None) -> float | None:
    """A `keep_alive`, seconds or a text as "5m" and "1h30m"; negative: for ever. Raises RequestError."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        return float(value)
    if len(value) <= 64 and _NUMBER.fullmatch(value):
        return float(value)
    if len(value) > 64 or not _WHOLE.fullmatch(value):
        raise RequestError(f"keep_alive is {shown(value)}: give seconds, or a time as '5m'; 0 unloads, -1 keeps")
    seconds = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(value))
    return -seconds if value.startswith("-") else seconds


class Keeping:
    """What happens to a model when a request has ended.

    Where nobody else uses it then, 0 unloads it and a negative time keeps it. Other times count where the server
    unloads what is unused (`idle_seconds`): in place of that time.
    """

    def __init__(self, call: Call, name: str, keep_alive: str | float | None) -> None:
        """To be made before the model is taken, so that it is settled after it is given back.

        Raises RequestError; Refusal: 404 for a model that is not known, 403 for a key that may not say it.
        """
        self.models = call.server.models
        self.call, self.name, self.seconds = call, self.models.spec(name).name, seconds_of(keep_alive)
        if self.seconds is not None:
            check_may_keep(call)
            call.opened.push_async_callback(self._settle)

    async def alone(self) -> str:
        """A request for nothing else: load the model, or unload it; what was done, in Ollama's words."""
        if self.seconds == 0:
            await self._settle()
            return "unload"
        await self.call.model(self.name)
        return "load"

    async def _settle(self) -> None:
        model = self.models.loaded.get(self.name)
        if model is None or model.users or self.seconds is None:
            return
        if self.seconds == 0:
            await self.models.unload(model)
        else:
            idle = self.models.config.idle_seconds
            model.used_at = inf if self.seconds < 0 else monotonic() + self.seconds - idle


def check_may_keep(call: Call) -> None:
    """Raise Refusal, 403, for a key that may not say when a model is unloaded (`keep_alive_keys`)."""
    allowed = call.server.config.keep_alive_keys
    if allowed is not None and call.key.owner not in allowed:
        raise Refusal(
            403,
            "keep_alive is not for everybody to say here (keep_alive_keys): leave it out",
            "permission_error",
            "keep_alive_not_allowed",
            param="keep_alive",
        )
