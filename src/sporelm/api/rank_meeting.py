"""Meetings of ranks on several hosts: each opens an address for every group that it is in, and is told those of others.

The addresses go through the authenticated connections of rank 0 (`Rendezvous` in `distributed`), not through a store of
torch, which would listen on every interface.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from sporelm.api.rank_opening import JoinedGroups, RankOptions
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.errors import BackendError, RankLost, install_command

Entries = dict[str, dict[str, bytes]]  # by the name of the group
WORLD = "world"
CONNECT_SECONDS = 60.0  # for all ranks to connect, once they know each other's addresses


class RankMeeting:
    """One rank's part of a meeting. `finish` returns its groups. The caller closes it, unless it has finished."""

    def __init__(self, options: RankOptions, host: str) -> None:
        """Open an address at `host`, a private one of this machine, for each group. Raises BackendError."""
        try:
            from sporelm.distributed.torch import Rendezvous, TorchGroup
        except ImportError:
            raise BackendError(
                f"ranks on several hosts exchange values through torch: {install_command('distributed')}"
            ) from None
        parallel, rank = options.parallel, options.rank
        places = {f"stage{parallel.stage(rank)}": (parallel.tp_rank(rank), parallel.tp)}
        if parallel.pp > 1:
            places[WORLD] = rank, parallel.size
        self._stage_name = next(iter(places))
        self._stores = {name: Rendezvous() for name, (_, size) in places.items() if size > 1}
        self._groups: dict[str, Future[Any]] = {name: Future() for name in self._stores}
        for name, store in self._stores.items():
            connect = partial(TorchGroup.connect_gloo, store, *places[name], host, name=name)
            words = (connect, store, self._groups[name])
            # Not a thread of an executor: the end of the process would wait for it.
            threading.Thread(target=_connect, args=words, name="rank-meeting", daemon=True).start()

    def open_addresses(self) -> Entries:
        """Return what the other ranks must know. Raises SporeError."""
        return {name: store.own() for name, store in self._stores.items()}

    def finish(self, entries: Mapping[str, Mapping[str, bytes]]) -> JoinedGroups:
        """Return this rank's place in its groups, given the addresses of all ranks. Raises SporeError."""
        for name, store in self._stores.items():
            store.add_all(entries.get(name, {}))
        deadline = monotonic() + CONNECT_SECONDS
        groups: dict[str, Any] = {}
        for name, future in self._groups.items():
            try:
                groups[name] = future.result(max(0.0, deadline - monotonic()))
            except TimeoutError:
                raise RankLost(
                    f"group of ranks: not all ranks connected within {CONNECT_SECONDS:g} seconds. Check that the hosts "
                    "reach each other at all ports."
                ) from None
        stage = groups.get(self._stage_name) or SharedMemoryGroup.create(1)[0]
        return JoinedGroups(stage, groups.get(WORLD))

    def close(self) -> None:
        """End all waits, and leave the groups, also a group that connects later. Groups of `finish` end, too."""
        for store in self._stores.values():
            store.fail(RankLost("group of ranks: the ranks were not started. Start them again."))
        for future in self._groups.values():
            future.add_done_callback(_leave)


def _connect(connect: Callable[[], Any], store: Any, group: "Future[Any]") -> None:
    try:
        group.set_result(connect())
    except Exception as error:
        store.fail(error)
        group.set_exception(error)


def _leave(group: "Future[Any]") -> None:
    if group.exception() is None:
        group.result().close()


def merge_entries(meetings: list[Entries]) -> Entries:
    """Return the addresses of all ranks, by group."""
    merged: Entries = {}
    for entries in meetings:
        for name, each in entries.items():
            merged.setdefault(name, {}).update(each)
    return merged
