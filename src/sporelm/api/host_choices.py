"""Options that the worker of another host chooses by itself, instead of taking those of rank 0."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from sporelm.api.cpu_count import choose_threads
from sporelm.api.parallel_options import DEFAULT_DEVICE, check_backend_name
from sporelm.api.rank_opening import RankOptions
from sporelm.backends.backend_registry import HOST_BACKENDS


@dataclass(frozen=True)
class HostChoices:
    """The choices of a worker.

    path     the model on this host; None: as rank 0 calls it
    threads  None: the usable cores of this host, since rank 0's number is that of another machine
    backend  with its device; None: as rank 0 says
    device   see backend; None: the default device
    """

    path: Path | None = None
    threads: int | None = None
    backend: str | None = None
    device: str | None = None

    def check(self) -> None:
        """Raise RequestError for a back-end that does not exist."""
        if self.backend is not None:
            check_backend_name("the option backend", self.backend)

    def apply(self, options: RankOptions) -> RankOptions:
        """Return the options of this rank. Raises RequestError for a number of threads that is out of range."""
        options = msgspec.structs.replace(options, threads=choose_threads(self.threads))
        if self.path is not None:
            options = msgspec.structs.replace(options, path=str(self.path))
        if self.backend is None:
            return options
        dtype = "auto" if self.backend in HOST_BACKENDS else options.dtype
        device = self.device or DEFAULT_DEVICE
        return msgspec.structs.replace(options, backend=self.backend, device=device, dtype=dtype)
