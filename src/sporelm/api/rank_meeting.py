"""Meetings of ranks on several hosts: each opens an address for every group that it is in, and is told those of others.

The addresses go through the authenticated connections of rank 0 (`Rendezvous` in `distributed`), not through a store of
torch, which would listen on every interface.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sporelm.api.rank_opening import JoinedGroups, RankOptions
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.errors import BackendError, install_command

Entries = dict[str, dict[str, bytes]]  # by the name of the group
WORLD = "world"


class RankMeeting:
    """One rank's part of a meeting. `finish` returns its groups."""

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
        self._stores = {name: Rendezvous() for name, (_, size) in places.items() if size > 1}
        self._threads = ThreadPoolExecutor(len(places), "rank-meeting")
        self._groups = {
            name: self._threads.submit(TorchGroup.connect_gloo, store, *places[name], host, name=name)
            for name, store in self._stores.items()
        }
        self._stage_name = next(iter(places))

    def open_addresses(self) -> Entries:
        """Return what the other ranks must know. Raises RankLost."""
        entries: Entries = {}
        for name, store in self._stores.items():
            if self._groups[name].done():
                self._groups[name].result()  # raises why it has failed
            entries[name] = store.own()
        return entries

    def finish(self, entries: Mapping[str, Mapping[str, bytes]]) -> JoinedGroups:
        """Return this rank's place in its groups, given the addresses of all ranks. Raises SporeError."""
        for name, store in self._stores.items():
            store.add_all(entries.get(name, {}))
        groups: dict[str, Any] = {name: future.result() for name, future in self._groups.items()}
        self._threads.shutdown()
        stage = groups.get(self._stage_name) or SharedMemoryGroup.create(1)[0]
        return JoinedGroups(stage, groups.get(WORLD))


def merge_entries(meetings: list[Entries]) -> Entries:
    """Return the addresses of all ranks, by group."""
    merged: Entries = {}
    for entries in meetings:
        for name, each in entries.items():
            merged.setdefault(name, {}).update(each)
    return merged
