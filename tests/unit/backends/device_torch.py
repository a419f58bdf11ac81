"""Torch's CPU with the context, stream, events and buffers of a device that runs by itself.

Its streams and events are torch's own for the CPU, which do nothing, or events that are complete only when a test says
so. Copies are made at once. Nothing here has run on a GPU.
"""

from dataclasses import replace
from typing import Any

import torch

from sporelm.backends.torch import TorchBackend
from sporelm.backends.torch.torch_backend import ACCELERATOR_TRAITS
from sporelm.backends.torch.torch_resources import TorchDevice


class LateEvent:
    """An event that is complete when its device has `finished`, and counts how often it was waited for."""

    def __init__(self, device: "LateDevice") -> None:
        self.device, self.mark = device, 0

    def record(self) -> None:
        self.device.num_launched += 1
        self.mark = self.device.num_launched

    def query(self) -> bool:
        return self.mark <= self.device.num_finished

    def synchronize(self) -> None:
        self.device.num_waits += not self.query()
        self.device.num_finished = max(self.mark, self.device.num_finished)


class LateDevice(TorchDevice):
    """A device whose events are complete once they were waited for, or `finish` was called."""

    num_launched = num_finished = num_waits = 0

    def create_event(self) -> Any:
        return LateEvent(self)

    def finish(self) -> None:
        self.num_finished = self.num_launched


class DeviceTorch(TorchBackend):
    """The torch back-end as on a GPU, on the CPU."""

    def use_device(self, device: torch.device) -> None:
        super().use_device(device)
        self.traits = replace(ACCELERATOR_TRAITS, max_batch=16, token_budget=512)
        self.step_buckets = {"any": self.traits.token_budget}
        self.late = LateDevice(device)
        self.context, self.resources = self.open_device(self.late)
