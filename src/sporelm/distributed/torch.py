"""Groups of ranks through torch.distributed: gloo between hosts, NCCL between GPUs (extra `distributed`).

gloo neither authenticates nor encrypts: anyone who reaches its ports can read and change activations. So a group is
bound to one private address. Ranks find each other through a `Rendezvous` of ours, not through torch's TCPStore, which
listens on every interface.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from time import sleep
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from sporelm.distributed.private_address import check_private
from sporelm.errors import BackendError, RankLost

CONNECT_SECONDS = 60.0
POLL_SECONDS = 0.00005
ABORT_SECONDS = 0.1  # until a wait notices that the group was aborted
KINDS = ("gloo", "nccl")


class Rendezvous(distributed.Store):  # type: ignore[misc, name-defined]
    """The addresses of all ranks of a group, which something else carries from one to the other.

    `own` are the entries that this rank has set; `add_all` gives it those of the others, for which `get` waits. `fail`
    ends all waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, bytes] = {}
        self._error: Exception | None = None
        self._changed = threading.Condition(threading.RLock())

    def own(self, seconds: float = CONNECT_SECONDS) -> dict[str, bytes]:
        """Return the entries of this rank, when it has set one. Raises RankLost if it does not, and the error that
        `fail` was given."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._entries or self._error), seconds):
                raise RankLost(f"group of ranks: no address was opened within {seconds:g} seconds. Start it again.")
            if self._error is not None:
                raise self._error
            return dict(self._entries)

    def add_all(self, entries: Mapping[str, bytes]) -> None:
        """Add the entries of other ranks."""
        with self._changed:
            self._entries |= entries
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End all waits, now and later, with this error; only the first one counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # What torch calls:

    def set(self, key: str, value: bytes | str) -> None:
        self.add_all({key: value.encode() if isinstance(value, str) else bytes(value)})

    def get(self, key: str) -> bytes:
        self.wait([key], timedelta(seconds=CONNECT_SECONDS))
        return self._entries[key]

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._entries for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = CONNECT_SECONDS if timeout is None else timeout.total_seconds()
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._error) or self.check(keys), seconds):
                raise RuntimeError(f"no other rank has sent its address within {seconds:g} seconds")
            if self._error is not None:
                raise RuntimeError(str(self._error))


class TorchGroup:
    """One rank of a group of torch.distributed. Its methods are called by one thread at a time, `abort` by any thread.

    device   on which arrays are exchanged: "cpu" for gloo
    """

    def __init__(self, process_group: Any, rank: int, size: int, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self.process_group = process_group
        self._is_aborted = threading.Event()
        self._has_left = False  # an exchange that was not awaited to its end

    @classmethod
    def connect_gloo(cls, store: Rendezvous, rank: int, size: int, address: str, *, name: str = "") -> "TorchGroup":
        """Connect all ranks of a group, which listen at `address`, a private address of this host.

        Raises RequestError for a public address, BackendError if the ranks cannot reach each other.
        """
        check_private(address, address)
        kind = getattr(distributed, "ProcessGroupGloo", None)
        if kind is None:
            raise BackendError("this build of torch lacks gloo: install one with torch.distributed")
        options = kind._Options()
        options._timeout = timedelta(days=1)  # `_wait` ends a wait, when the group is aborted
        try:
            options._devices = [kind.create_device(hostname=address)]
            own: Any = distributed.PrefixStore(name, store) if name else store  # type: ignore[attr-defined]
            group = kind(own, rank, size, options)
        except RuntimeError as reason:
            raise BackendError(
                f"group of ranks: rank {rank} cannot connect at {address} ({_first_line(reason)}). Use addresses by "
                "which the hosts reach each other."
            ) from None
        return cls(group, rank, size)

    @classmethod
    def connect_nccl(cls, path: str, rank: int, size: int, device: str) -> "TorchGroup":
        """Connect the ranks of a group of GPUs of one host, which find each other by a file in a private folder. Raises
        BackendError without NCCL.

        Not run on two cards by its authors.
        """
        kind = getattr(distributed, "ProcessGroupNCCL", None)
        if kind is None or not torch.cuda.is_available():
            raise BackendError("NCCL needs NVIDIA GPUs and a build of torch with NCCL. Leave out SPORE_NCCL.")
        store = distributed.FileStore(path, size)  # type: ignore[attr-defined]
        group = cls(kind(store, rank, size, kind.Options()), rank, size, device)
        group.all_reduce_in_place(torch.zeros(1, device=group.device))  # connects, which a captured graph cannot
        return group

    @property
    def is_on_device(self) -> bool:
        """Whether all_reduce runs on the device, in an order of NCCL's own."""
        return self.device.type != "cpu"

    def all_reduce_in_place(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of all ranks, which NCCL adds in an order of its own."""
        self._wait(self.process_group.allreduce([values]))
        return values

    def all_gather(self, array: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
        """Return the arrays of all ranks, in rank order. Raises RankLost."""
        sizes = [int(np.prod(shape)) * array.itemsize for shape in shapes]
        own = self._bytes_of(array)
        padded = torch.zeros(max(max(sizes), 1), dtype=torch.uint8, device=self.device)
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in shapes]
        self._wait(self.process_group.allgather([parts], [padded]))
        return [
            part[:size].cpu().numpy().view(array.dtype).reshape(shape)
            for part, size, shape in zip(parts, sizes, shapes, strict=True)
        ]

    def send(self, array: NDArray[Any], target: int) -> None:
        """Give an array to another rank. Raises RankLost."""
        self._pass("send", self._bytes_of(array), target)

    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int) -> NDArray[Any]:
        """Return the next array from another rank. Raises RankLost."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        values = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self._pass("recv", values, source)
        return values.cpu().numpy().view(dtype).reshape(shape)

    def _pass(self, verb: str, values: torch.Tensor, peer: int) -> None:
        """Send or receive. gloo tells the end of that only to a thread that waits, and nothing wakes that thread: so it
        is one that may be left behind."""
        self.check()
        has_ended = threading.Event()
        reasons: list[RuntimeError] = []

        def run() -> None:
            try:
                getattr(self.process_group, verb)([values], peer, 0).wait()
            except RuntimeError as reason:
                reasons.append(reason)
            has_ended.set()

        threading.Thread(target=run, name=f"gloo-{verb}", daemon=True).start()
        while not has_ended.wait(ABORT_SECONDS):
            self.check()
        if reasons:
            raise RankLost(f"group of ranks: rank {peer} is lost ({_first_line(reasons[0])})")

    def _bytes_of(self, array: NDArray[Any]) -> torch.Tensor:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return torch.from_numpy(flat.copy() if not flat.flags.writeable else flat).to(self.device)

    def _wait(self, work: Any) -> None:
        """Wait for an exchange, but no longer than until the group is aborted. Raises RankLost."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            work.wait()  # only orders streams
            return
        while not work.is_completed():
            self.check()
            if self.is_on_device:
                sleep(POLL_SECONDS)
                continue
            # Blocked, not polling, because gloo's threads would not get this thread's core for milliseconds. An
            # exchange that is not over yet is an error here; others are raised below.
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=ABORT_SECONDS))
        try:
            work.wait()
        except RuntimeError as reason:
            raise RankLost(f"group of ranks: another rank is lost ({_first_line(reason)})") from None

    def abort(self) -> None:
        """Make all waits of this rank raise RankLost, now and later."""
        self._is_aborted.set()
        abort = getattr(self.process_group, "abort", None) if self.is_on_device else None
        if abort is not None:  # a kernel of NCCL that waits for another rank would never end
            abort()

    def check(self) -> None:
        """Raise RankLost if the group was aborted."""
        if self._is_aborted.is_set():
            self._has_left = True
            raise RankLost("group of ranks: it was aborted. Restart it.")

    def close(self) -> None:
        """Close the connections. After an exchange that did not end they are left to the end of the process, because
        gloo's destructor waits for it."""
        self.abort()
        if self._has_left and self.process_group is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.process_group))
        self.process_group = None


def _first_line(reason: BaseException) -> str:
    return str(reason).strip().splitlines()[0][:200]
