"""Limits of SwiGLU for each layer."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.errors import ModelFileError
from sporelm.models.blocks.clamped_mlp import MIN_LIMIT

MAX_LIMIT: Final = 1e6


def read_swiglu_limits(values: ConfigValues, key: str, layers: int) -> tuple[float, ...]:
    """Return the limit of each layer, 0 for none. Raises ModelFileError for unsupported limits."""
    given: Any = values.get(key)
    given = given.tolist() if hasattr(given, "tolist") else given
    if given is None or isinstance(given, int | float):
        given = [given or 0.0] * layers
    if isinstance(given, list):
        given = [each or 0.0 for each in given[:layers]]
    limits = ConfigValues({key: given}, values.where).numbers(key, layers, 0.0, MAX_LIMIT)
    if any(0 < limit < MIN_LIMIT for limit in limits):
        raise ModelFileError(
            f"{values.where}: {key} is {format_value(given)}; a limit must be at least {MIN_LIMIT}, or 0 for none"
        )
    return limits
