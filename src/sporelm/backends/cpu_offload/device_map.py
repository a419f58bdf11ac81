"""The device map of a model: which of its weights and caches are on the device, and which on the host."""

from collections.abc import Mapping
from dataclasses import dataclass

DEVICE, HOST = 0, 1  # the parts of a `CpuOffloadBackend`


@dataclass(frozen=True)
class DeviceMap:
    """The part, DEVICE or HOST, of each weight and cache of a model.

    weights      by the name of the parameter
    pages        of each cache of pages, in the model's order
    states       of each layer's recurrent states, in the model's order
    read_bytes   of weights that a token reads, on the device and on the host
    description  of the split, for users
    """

    weights: Mapping[str, int]
    pages: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    read_bytes: tuple[int, int] = (1, 1)
    description: str = ""
