"""A sequence: the token ids whose keys and values are cached, the pages that hold them, and its recurrent state."""

from collections.abc import Sequence
from itertools import count

from sporelm.engine.kv.prefix_cache import PageHash, PageHashes

NO_STATE = -1  # in place of the number of a state slot

_sequence_ids = count(1)


class KvSequence:
    """Created by a KvCache, which alone changes it. It outlives a request, so that a conversation keeps its KV."""

    __slots__ = (
        "draft_base_slot",
        "id",
        "is_in_use",
        "is_private",
        "launched_slots",
        "page_hashes",
        "page_table",
        "pages",
        "snapshot_positions",
        "state_slot",
        "tokens",
        "transient_snapshot",
    )

    def __init__(self, cache_salt: str = "", adapter: str = "", *, is_private: bool = False) -> None:
        self.id = next(_sequence_ids)
        self.page_hashes = PageHashes(cache_salt, adapter)  # of its full pages
        self.is_private = is_private  # its pages never enter the prefix cache, and no state snapshot is kept
        self.tokens: list[int] = []  # the ids whose keys and values are cached, one a position
        self.pages: list[int] = []  # may reach further than the tokens: pages reserved for the next step
        # The pages as a tuple: the same object until the pages change, which is how readers notice a change.
        self.page_table: tuple[int, ...] = ()
        self.is_in_use = False  # by a running request: it must not be evicted
        # The rest is for models that keep recurrent states (state_snapshots.py); for others nothing is behind it.
        self.state_slot = 0  # of the state after the last token
        self.draft_base_slot = NO_STATE  # of the state before a draft, until it is known how much of it is accepted
        self.launched_slots: list[int] = []  # of the states that launched steps write and commits have not taken over
        self.snapshot_positions: tuple[int, ...] = ()  # where a snapshot is kept, besides the regular interval
        self.transient_snapshot: PageHash | None = None  # the newest snapshot, if only the next one replaces it

    @property
    def length(self) -> int:
        """Positions whose keys and values are cached."""
        return len(self.tokens)

    def set_pages(self, pages: list[int]) -> None:
        """Replace the pages. Changes the sequence, not the allocator."""
        self.pages = pages
        self.page_table = tuple(pages)

    def match_length(self, ids: Sequence[int]) -> int:
        """Return the length of the longest common prefix of `ids` and the cached tokens. Changes nothing."""
        limit = min(len(ids), len(self.tokens))
        if list(ids[:limit]) == self.tokens[:limit]:
            return limit
        return next(index for index in range(limit) if ids[index] != self.tokens[index])

    def __repr__(self) -> str:
        return f"KvSequence({self.id}, {self.length} positions, pages {self.pages})"
