"""Limits of SwiGLU in each layer, as files have them."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, shown
from sporelm.errors import ModelFileError
from sporelm.models.blocks.clamped_mlp import MIN_LIMIT

MAX_LIMIT: Final = 1e6


def read_swiglu_limits(values: ConfigValues, key: str, layers: int) -> tuple[float, ...]:
    """Return a limit for each layer, 0 where there is none. Raises ModelFileError for others than are supported."""
    given: Any = values.get(key)
    given = given.tolist() if hasattr(given, "tolist") else given
    if given is None or isinstance(given, int | float):
        given = [given or 0.0] * layers
    if isinstance(given, list):
        given = [each or 0.0 for each in given[:layers]]
    limits = ConfigValues({key: given}, values.where).numbers(key, layers, 0.0, MAX_LIMIT)
    if any(0 < limit < MIN_LIMIT for limit in limits):
        raise ModelFileError(f"{values.where}: {key} is {shown(given)}; limits are {MIN_LIMIT} or more, 0 for none")
    return limits
