"""A sequence: the token ids whose keys and values are in the cache, the pages that hold them, and its state."""

from collections.abc import Sequence
from itertools import count

from sporelm.engine.kv.prefix import Chain, Key

NONE = -1  # instead of a state's number

_numbers = count(1)


class KvSequence:
    """Made by a SequenceStore, which alone changes it. It outlives a request, so that a conversation keeps its KV."""

    __slots__ = ("_table", "before", "busy", "chain", "marks", "number", "pages", "passing", "state", "tokens")

    def __init__(self, salt: str = "", adapter: str = "") -> None:
        self.number = next(_numbers)
        self.chain = Chain(salt, adapter)  # the keys of its full pages, and with which adapter they were computed
        self.tokens: list[int] = []  # what the cache holds, one id a position
        self.pages: list[int] = []  # may reach further than the tokens: pages made ready for the next step
        self.busy = False  # a running request uses it: it must not be evicted
        self._table: tuple[int, ...] = ()
        # Of models that keep recurrent states (stateful.py); for others nothing is behind these numbers.
        self.state = 0  # that of its last token
        self.before = NONE  # that before a step with guesses, until it is known which were right
        self.marks: tuple[int, ...] | None = ()  # where states are kept beside other places; None: nowhere
        self.passing: Key | None = None  # of the newest state that is kept until the next one is

    @property
    def length(self) -> int:
        """Positions held."""
        return len(self.tokens)

    @property
    def table(self) -> tuple[int, ...]:
        """The pages as a tuple; the same object until the pages change, which is how readers notice a change."""
        return self._table

    def set_pages(self, pages: list[int]) -> None:
        """Take these pages for the sequence's own. Changes the sequence, not the pool."""
        self.pages = pages
        self._table = tuple(pages)

    def match(self, ids: Sequence[int]) -> int:
        """Length of the longest common prefix of `ids` and what the cache holds. Changes nothing."""
        limit = min(len(ids), len(self.tokens))
        if list(ids[:limit]) == self.tokens[:limit]:
            return limit
        return next(index for index in range(limit) if ids[index] != self.tokens[index])

    def __repr__(self) -> str:
        return f"KvSequence({self.number}, {self.length} positions, pages {self.pages})"
