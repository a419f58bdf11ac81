"""The values of `reasoning_effort` that requests may set."""

from sporelm.errors import safe_repr
from sporelm.serve.http.api_errors import ApiError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def checked_effort(param: str, effort: str) -> str:
    """Return a request's reasoning effort, which templates get as `reasoning_effort`. Raises ApiError, 400."""
    if effort not in EFFORTS:
        raise ApiError(400, f"{param} is {safe_repr(effort)}: it must be one of {', '.join(EFFORTS)}", param=param)
    return effort
