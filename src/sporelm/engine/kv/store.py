"""The sequences that are kept, and who gives way when pages run out.

Sequences that no running request uses are idle: their pages go to those that need some, the longest unused first.
What an idle sequence loses sleeps until it is used again, where there is a dormitory; else it is computed anew.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from sporelm.engine.kv.asleep import Asleep
from sporelm.engine.kv.pages import PagePool, pages_for
from sporelm.engine.kv.prefix import Chain, Key, common
from sporelm.engine.kv.sequence import KvSequence
from sporelm.engine.kv.states import StatePool
from sporelm.errors import RequestError
from sporelm.ops.attention import PAGE

Copies = list[tuple[int, int]]  # (source page, target page), to be carried out in this order before the step's writes


class Dormitory(Protocol):
    """Where sequences sleep that give way: `SessionFolder`, which says what each of these does."""

    def put(self, sequence: KvSequence) -> None: ...
    def sleeping(self, sequence: KvSequence) -> list[int]: ...
    def ready(self, sequence: KvSequence) -> bool: ...
    def held(self, sequence: KvSequence) -> Asleep | None: ...
    def bring(self, sequence: KvSequence, first: int, last: int) -> bool: ...
    def share(self, source: KvSequence, twin: KvSequence) -> None: ...
    def leave(self, sequence: KvSequence) -> None: ...
    def close(self) -> None: ...


class SequenceStore:
    """All sequences over one pool of pages."""

    states: StatePool | None = None  # of models that keep recurrent states: `StatefulStore`

    def __init__(self, pool: PagePool, dormitory: Dormitory | None = None) -> None:
        self.pool = pool
        self.dormitory = dormitory
        self.sequences: dict[int, KvSequence] = {}  # by number, the longest unused first

    def new(self, salt: str = "", adapter: str = "") -> KvSequence:
        """An empty sequence, which shares pages with others of the same salt and adapter only. Changes the store."""
        sequence = KvSequence(salt, adapter)
        self.sequences[sequence.number] = sequence
        return sequence

    def fork(self, source: KvSequence) -> KvSequence:
        """A sequence that holds what `source` holds, in the same pages. Changes the store and the pool.

        Nothing is copied yet: whoever first writes into a page that both hold, the last and partly filled one, gets
        its own copy of it then (`reserve`).
        """
        twin = self.new()
        twin.tokens, twin.chain = list(source.tokens), source.chain.copy()
        twin.set_pages(source.pages[: pages_for(source.length)])
        self.pool.share(twin.pages)
        if self.dormitory is not None:
            self.dormitory.share(source, twin)
        return twin

    def usable(self, sequence: KvSequence, length: int) -> int:
        """Of the first `length` positions, how many a sequence would hold if it were cut there. Changes nothing."""
        return min(length, sequence.length)

    def find(self, keys: Sequence[Key]) -> list[int]:
        """The pages of the longest known beginning of a chain from which one can go on. Changes nothing."""
        return self.pool.index.find(keys)

    def why_missed(self, chain: Chain, number: int, tokens: Sequence[int]) -> str:
        """Why no more than `number` full pages of a text were of use. Remembers the salt."""
        return self.pool.index.why_missed(chain, number, tokens)

    def drop(self, sequence: KvSequence) -> None:
        """Forget a sequence. Changes the store and the pool. Dropping it again does nothing."""
        self.truncate(sequence, 0)
        self.sequences.pop(sequence.number, None)
        if self.dormitory is not None:
            self.dormitory.leave(sequence)

    def truncate(self, sequence: KvSequence, length: int) -> None:
        """Keep the first `length` positions at most. Changes the sequence and the pool."""
        self._cut(sequence, length)

    def _cut(self, sequence: KvSequence, length: int) -> None:
        kept = pages_for(min(length, sequence.length))
        if kept < len(sequence.pages):
            self.pool.release(sequence.pages[kept:])
            sequence.set_pages(sequence.pages[:kept])
        del sequence.tokens[length:]
        del sequence.chain.keys[len(sequence.tokens) // PAGE :]

    def extend(self, sequence: KvSequence, tokens: Sequence[int]) -> None:
        """The pages hold these tokens too now. Full pages can be found by others from here on. Changes both."""
        sequence.tokens.extend(tokens)
        chain = sequence.chain
        if len(sequence.tokens) // PAGE == len(chain.keys):
            return  # no page has become full
        for number in chain.extend(sequence.tokens):
            content = sequence.tokens[number * PAGE : (number + 1) * PAGE]
            self.pool.index.add(sequence.pages[number], chain.keys[number], chain.before(number), content)

    def accept(self, sequence: KvSequence, tokens: Sequence[int], rows: int, said: int) -> bool:
        """A step computed these tokens: the known ones, and `rows` - 1 guesses, of which all but the last of `said`
        tokens were right. Hold the known ones; True if it is settled what else is held, False if the guesses that were
        right are still to be held, one by one (`extend`). Changes the sequence."""
        self.extend(sequence, tokens[: len(tokens) - rows + 1])
        return False

    def distrust(self, sequence: KvSequence) -> None:
        """A step with this sequence did not come to its end: hold nothing that it may have changed. Of pages these are
        the positions after those held. Changes the sequence."""

    def adopt(self, sequence: KvSequence, pages: Sequence[int], ids: Sequence[int], keys: Sequence[Key]) -> None:
        """Hold these pages of `ids` from position 0 on, found under `keys`, in place of what it held. Changes both."""
        self.pool.share(pages)
        self.truncate(sequence, 0)
        sequence.tokens = list(ids[: len(pages) * PAGE])
        sequence.chain.keys = list(keys[: len(pages)])
        sequence.set_pages(list(pages))

    def adapt(self, sequence: KvSequence, adapter: str) -> None:
        """Be computed with this adapter from now on: what was computed with another is of no use, and goes. Changes
        the sequence and the pool."""
        if sequence.chain.adapter != adapter:
            self.truncate(sequence, 0)
            if self.dormitory is not None:
                self.dormitory.leave(sequence)
            sequence.chain = Chain(sequence.chain.salt, adapter)

    def discard(self, sequence: KvSequence) -> None:
        """Keep nothing, and let nobody find it: what the pages hold is wrong. Changes the sequence and the pool."""
        for page in sequence.pages:
            self.pool.index.forget(page)
        self.truncate(sequence, 0)

    def use(self, sequence: KvSequence) -> None:
        """Mark a sequence as used by a running request. Changes the store."""
        if sequence.number not in self.sequences:
            raise RequestError(f"sequence {sequence.number} was dropped; begin a new one")
        self.sequences[sequence.number] = self.sequences.pop(sequence.number)
        sequence.busy = True

    def sleeps(self, sequence: KvSequence) -> bool:
        """Whether a sequence has given way, and what it held is kept elsewhere."""
        return self.dormitory is not None and bool(self.dormitory.sleeping(sequence))

    def wake(self, sequence: KvSequence, ids: Sequence[int], copies: Copies) -> None:
        """Bring back what a sequence held when it gave way, as far as `ids` begin with it and it holds less now.

        Changes the sequence, the pool and, at once, the caches. Does nothing where `copies` are still to be carried
        out: pages that are written to now may be those to be copied.
        """
        dormitory = self.dormitory
        if dormitory is None or copies or not (asleep := dormitory.sleeping(sequence)):
            return
        end = common(asleep, ids)
        if end > sequence.length:
            first = sequence.length // PAGE
            self._cut(sequence, first * PAGE)
            if not self.reserve(sequence, end, []):
                return
            if dormitory.bring(sequence, first, pages_for(end)):
                self.extend(sequence, asleep[first * PAGE : end])
        dormitory.leave(sequence)

    def is_ready(self, sequence: KvSequence, position: int) -> bool:
        """Whether a position lies in a page of the sequence's own that nobody knows by what it held, so that `reserve`
        has nothing to do for it. Changes nothing."""
        number, pages = position // PAGE, sequence.pages
        if number >= len(pages):
            return False
        page = pages[number]
        return self.pool.holders[page] == 1 and page not in self.pool.index.keys

    def reserve(self, sequence: KvSequence, end: int, copies: Copies) -> bool:
        """Make the positions from the sequence's length up to `end` writable; False if there are not the pages for it.

        Changes the pool and may evict idle sequences. A page to be written that others hold too is replaced by a
        copy; the copying itself is appended to `copies`.
        """
        pages, first = sequence.pages, len(sequence.tokens) // PAGE
        shared = first < len(pages) and self.pool.holders[pages[first]] > 1
        if not shared and end <= len(pages) * PAGE:
            self._rewritten(sequence, first)
            return True
        missing = max(0, pages_for(end) - len(pages))
        if not self.make_free(missing + shared):
            # Where idle sequences are the other holders, evicting them saves the copy.
            if not shared or not self.make_free(missing):
                return False
            self.evict(lambda: self.pool.holders[pages[first]] == 1)
        shared = shared and self.pool.holders[pages[first]] > 1
        if self.pool.num_free < missing + shared:
            return False
        grown = list(pages)
        if shared:
            target = self.pool.take()
            copies.append((pages[first], target))
            self.pool.release([pages[first]])
            grown[first] = target
        grown.extend(self.pool.take() for _ in range(missing))
        sequence.set_pages(grown)
        self._rewritten(sequence, first)
        return True

    def aim(self, sequence: KvSequence, known: int, keys: Sequence[Key]) -> None:
        """A sequence is about to be computed up to `known` positions, whose full pages have these keys."""

    def reach(self, sequence: KvSequence, end: int) -> int:
        """How far towards `end` a step may go. Changes nothing."""
        return end

    def affordable(self, sequence: KvSequence, end: int, guesses: Sequence[int]) -> Sequence[int]:
        """Those of the guesses after position `end` for which nobody has to give anything. Changes nothing."""
        return guesses if guesses and self._has_room(sequence, end + len(guesses)) else ()

    def branch(self, sequence: KvSequence) -> bool:
        """Guesses will be computed, from which one can go back (`accept`, `unbranch`); False if there is no room for
        that. Changes the sequence."""
        return True

    def unbranch(self, sequence: KvSequence, length: int) -> None:
        """Go back to where guesses began, unless they are of use as they are. Changes the sequence."""

    def _has_room(self, sequence: KvSequence, end: int) -> bool:
        return pages_for(end) - len(sequence.pages) + 1 <= self.pool.num_free or end <= len(sequence.pages) * PAGE

    def _rewritten(self, sequence: KvSequence, number: int) -> None:
        """A page is about to be written to: it does not hold any longer what it is known by."""
        if number < len(sequence.pages):
            self.pool.index.forget(sequence.pages[number])

    def make_free(self, needed: int) -> bool:
        """Evict idle sequences until `needed` pages are free; False, and none evicted, if that cannot be reached."""
        if self.pool.num_free >= needed:
            return True
        if self.obtainable() < needed:
            return False
        self.evict(lambda: self.pool.num_free >= needed)
        return True

    def evict(self, enough: Callable[[], bool]) -> None:
        """Take the pages of idle sequences, the longest unused first, until it is enough or none is left."""
        for sequence in list(self.sequences.values()):
            if enough():
                return
            if sequence.pages and not sequence.busy:
                if self.dormitory is not None:
                    self.dormitory.put(sequence)
                self.truncate(sequence, 0)

    def can_have(self, pages: int, states: int) -> bool:
        """Whether so many pages, and recurrent states, could be had more. Changes nothing."""
        return pages <= self.obtainable()

    def scarce(self, sequence: KvSequence, end: int) -> str:
        """What there was too little of when the positions up to `end` could not be had (`reserve`)."""
        return f"all {self.pool.count} pages"

    def missing_states(self, sequence: KvSequence) -> int:
        """States that a sequence needs before it can be computed. Changes nothing."""
        return 0

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The states (source, target) that the next step copies before it computes anything. Changes the store."""
        return () if self.states is None else self.states.take_copies()

    @property
    def copying(self) -> bool:
        """Whether states wait to be copied by the next step."""
        return self.states is not None and bool(self.states.copies)

    def obtainable(self) -> int:
        """Pages that are free or held by idle sequences only. Changes nothing."""
        idle: dict[int, int] = {}
        for sequence in self.sequences.values():
            if not sequence.busy:
                for page in sequence.pages:
                    idle[page] = idle.get(page, 0) + 1
        return self.pool.num_free + sum(self.pool.holders[page] == held for page, held in idle.items())

    def check_integrity(self) -> None:
        """Raise BackendError unless pages and sequences agree. Changes nothing."""
        self.pool.check_integrity(sequence.pages for sequence in self.sequences.values())
