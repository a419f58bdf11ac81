"""The numbers in use for a device: those measured on this machine, else the defaults for its kind."""

from dataclasses import dataclass

from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.device_tuning import DeviceTuning, default_tuning


@dataclass(frozen=True)
class ActiveTuning:
    """The numbers of a device and, for `spore doctor`, their source."""

    tuning: DeviceTuning
    source: str


def tuning_in_use(device: OpenClDevice) -> ActiveTuning:
    """Return the numbers for a device."""
    return ActiveTuning(default_tuning(device), "defaults")
