"""Asynchronous copies from a torch device to the host."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


class TorchFetch:
    """A copy into pinned memory that the device's current stream makes when it gets there."""

    def __init__(self, stored: Tensor) -> None:
        self._copy = torch.empty(stored.shape, dtype=stored.dtype, pin_memory=True)
        self._copy.copy_(stored, non_blocking=True)
        self._event: Any = torch.get_device_module(stored.device).Event()
        self._event.record()

    def result(self) -> np.ndarray:
        self._event.synchronize()
        return as_array(self._copy)


def as_array(stored: Tensor) -> np.ndarray:
    """Return a tensor on the host as an array: float16 and float32 as they are, bfloat16 and FP8 as their bits."""
    if stored.dtype is torch.bfloat16:
        return stored.view(torch.int16).numpy().view(np.uint16)
    return (stored.view(torch.uint8) if stored.dtype is torch.float8_e4m3fn else stored).numpy()


def can_fetch_asynchronously(device: torch.device) -> bool:
    """Return whether a device has events and pinned memory for `TorchFetch`."""
    if device.type in ("cpu", "meta"):
        return False
    try:
        return bool((TorchFetch(torch.ones(1, device=device)).result() == 1).all())
    except Exception:  # each vendor's plug-in has errors of its own
        return False
