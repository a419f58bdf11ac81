"""Measurement of a device's peak rates."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sporelm.backends.opencl.opencl_backend import OpenClBackend


def measure_peak_rates(backend: "OpenClBackend") -> Mapping[str, float]:
    raise NotImplementedError
