"""The number of threads of our kernels inside another framework, and the one back-end that they share."""

from threading import Lock

import torch

from sporelm.adaptors.torch.host_kernels import HostKernels
from sporelm.backends.host_cores import usable_cores

_LOCK = Lock()
_OPEN: list[HostKernels] = []  # at most one
_CHOSEN: list[int] = []


def get_num_threads() -> int:
    """Return the number of threads of our kernels: as many as torch has, unless `set_num_threads` said otherwise."""
    return _CHOSEN[0] if _CHOSEN else max(1, min(torch.get_num_threads(), usable_cores()))


def set_num_threads(threads: int) -> None:
    """Have our kernels use this number of threads from now on, the caller's included. Other ops of torch keep theirs.

    Raises ValueError for a number below 1.
    """
    if threads < 1:
        raise ValueError(f"threads: too few (got {threads}; at least 1). Give the number of cores to use.")
    with _LOCK:
        _CHOSEN[:] = [threads]
        if _OPEN and _OPEN[0].threads != threads:
            _OPEN.pop().close()


def host_kernels() -> HostKernels:
    """Return the kernels that all ops on the CPU share. The first call opens the CPU back-end."""
    with _LOCK:
        if not _OPEN:
            _OPEN.append(HostKernels(get_num_threads()))
        return _OPEN[0]
