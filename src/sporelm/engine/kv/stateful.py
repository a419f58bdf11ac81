"""Sequences of models that keep recurrent states: beside its pages each has a state, that of its last token.

Pages can be cut at any place, a state cannot: it is kept where a step ends with a full page, under that page's key,
for whoever goes on from there. A text that is cut goes back to the last such place, and what follows is computed anew.
States that lie a whole number of `interval`s from the beginning, where a prompt's last full page ends, or where it
parts from a text that is known, are kept until others need the room; of those in between a sequence keeps its newest
one only.
"""

from collections import Counter
from collections.abc import Sequence

from sporelm.engine.kv.pages import PagePool, pages_for
from sporelm.engine.kv.prefix import Chain, Key, common
from sporelm.engine.kv.sequence import NONE, KvSequence
from sporelm.engine.kv.states import StatePool
from sporelm.engine.kv.store import Copies, Dormitory, SequenceStore
from sporelm.errors import BackendError
from sporelm.ops.attention import PAGE


class StatefulStore(SequenceStore):
    """All sequences over a pool of pages and one of states; `interval` is a number of pages."""

    states: StatePool

    def __init__(self, pool: PagePool, states: StatePool, interval: int, dormitory: Dormitory | None = None) -> None:
        super().__init__(pool, dormitory)
        self.states = states
        self.interval = interval * PAGE
        pool.index.forgotten = states.forget  # without its page nobody could go on from a state

    def new(self, salt: str = "", adapter: str = "") -> KvSequence:
        sequence = super().new(salt, adapter)
        sequence.state = NONE
        return sequence

    def fork(self, source: KvSequence) -> KvSequence:
        twin = super().fork(source)
        if source.tokens:
            self.states.share(source.state)
            twin.state = source.state
        return twin

    def usable(self, sequence: KvSequence, length: int) -> int:
        if length >= sequence.length:
            return sequence.length
        return self._kept(sequence.chain.keys[: length // PAGE])

    def find(self, keys: Sequence[Key]) -> list[int]:
        pages = self.pool.index.find(keys)
        return pages[: self._kept(keys[: len(pages)]) // PAGE]

    def why_missed(self, chain: Chain, number: int, tokens: Sequence[int]) -> str:
        index, first = self.pool.index, number
        if chain.keys[number] not in index.pages:
            return super().why_missed(chain, number, tokens)
        while number < len(chain.keys) and chain.keys[number] in index.pages:
            number += 1
        return f"no state kept between tokens {first * PAGE} and {number * PAGE}"

    def truncate(self, sequence: KvSequence, length: int) -> None:
        if length < sequence.length:
            length = self._go_back(sequence, length)
        self._cut(sequence, length)
        if not sequence.tokens:
            self._let_go(sequence)

    def extend(self, sequence: KvSequence, tokens: Sequence[int]) -> None:
        super().extend(sequence, tokens)
        if tokens and not len(sequence.tokens) % PAGE and sequence.marks is not None:
            self._keep(sequence)

    def adopt(self, sequence: KvSequence, pages: Sequence[int], ids: Sequence[int], keys: Sequence[Key]) -> None:
        state = self.states.known[keys[len(pages) - 1]]
        self.states.share(state)
        super().adopt(sequence, pages, ids, keys)
        sequence.state = state

    def distrust(self, sequence: KvSequence) -> None:
        if sequence.before != NONE:  # which no step has written to
            self._settle(sequence, whole=False)
        elif sequence.tokens:
            self._cut(sequence, self._go_back(sequence, sequence.length))
        if not sequence.tokens:
            self._let_go(sequence)

    def wake(self, sequence: KvSequence, ids: Sequence[int], copies: Copies) -> None:
        if self.dormitory is None or copies or self.copying:
            return
        asleep = self.dormitory.sleeping(sequence)
        if not sequence.length < len(asleep) == common(asleep, ids):
            self.dormitory.leave(sequence)  # what sleeps is the state of a whole text, of no use for its beginning
            return
        self._let_go(sequence)
        super().wake(sequence, ids, copies)
        if sequence.length < len(asleep):  # there are not the pages, or it is lost
            self.distrust(sequence)

    def is_ready(self, sequence: KvSequence, position: int) -> bool:
        return self.states.is_own(sequence.state) and super().is_ready(sequence, position)

    def reserve(self, sequence: KvSequence, end: int, copies: Copies) -> bool:
        return super().reserve(sequence, end, copies) and (not end or self._own_state(sequence))

    def aim(self, sequence: KvSequence, known: int, keys: Sequence[Key]) -> None:
        last = (known - 1) // PAGE
        parting = len(self.pool.index.find(keys[:last]))  # where a text leaves one that is known others may, too
        sequence.marks = (parting * PAGE, last * PAGE)

    def reach(self, sequence: KvSequence, end: int) -> int:
        held = len(sequence.tokens)
        stop = (held // self.interval + 1) * self.interval
        return min(end, stop, *(mark for mark in sequence.marks or () if mark > held))

    def affordable(self, sequence: KvSequence, end: int, guesses: Sequence[int]) -> Sequence[int]:
        return super().affordable(sequence, end, guesses[: -end % PAGE])  # its state can be kept there

    def branch(self, sequence: KvSequence) -> bool:
        if sequence.before == NONE and self.states.num_free:
            sequence.before = sequence.state
            sequence.state = self.states.copy(sequence.state)
        return sequence.before != NONE

    def unbranch(self, sequence: KvSequence, length: int) -> None:
        if sequence.before != NONE:
            self._settle(sequence, whole=False)
        self._cut(sequence, length)  # also where a step failed, after which its state is the one before (`distrust`)

    def accept(self, sequence: KvSequence, tokens: Sequence[int], rows: int, said: int) -> bool:
        if sequence.before == NONE:
            return super().accept(sequence, tokens, rows, said)
        whole = said == rows
        self._settle(sequence, whole)
        if whole:
            self.extend(sequence, tokens)
        return True

    def can_have(self, pages: int, states: int) -> bool:
        return super().can_have(pages, states) and states <= self.obtainable_states()

    def scarce(self, sequence: KvSequence, end: int) -> str:
        if pages_for(end) > len(sequence.pages):
            return super().scarce(sequence, end)
        return f"all {self.states.count} recurrent states"

    def missing_states(self, sequence: KvSequence) -> int:
        return 0 if self.states.is_own(sequence.state) else 1

    def obtainable_states(self) -> int:
        """States that are free or held by idle sequences only. Changes nothing."""
        return self.states.num_free + sum(self.states.holders[state] == held for state, held in self._idle().items())

    def _idle(self) -> Counter[int]:
        """How many idle sequences hold each state."""
        return Counter(each.state for each in self.sequences.values() if not each.busy and each.state != NONE)

    def check_integrity(self) -> None:
        super().check_integrity()
        sequences = self.sequences.values()
        held = [state for each in sequences for state in (each.state, each.before) if state != NONE]
        self.states.check_integrity(held)
        if lost := [each for each in sequences if each.tokens and each.state == NONE]:
            raise BackendError(f"{lost[0]} has no state")
        if self.states.known.keys() - self.pool.index.pages.keys():
            raise BackendError("a state is known by the key of a page that is not known")

    def _kept(self, keys: Sequence[Key]) -> int:
        """Positions up to the last place of a chain at which a state is known."""
        known = self.states.known
        return next((number * PAGE for number in range(len(keys), 0, -1) if keys[number - 1] in known), 0)

    def _keep(self, sequence: KvSequence) -> None:
        """A page is full, and the state is that of its last token: whoever goes on from here may have it."""
        key, length = sequence.chain.keys[-1], len(sequence.tokens)
        self.states.keep(sequence.state, key)
        if sequence.passing is not None and sequence.passing != key:
            self.states.forget(sequence.passing)
        lasting = not length % self.interval or length in (sequence.marks or ())
        sequence.passing = None if lasting else key

    def _go_back(self, sequence: KvSequence, length: int) -> int:
        """Hold the state of the last place up to `length` at which one is known, or none. Says where that is."""
        place = self._kept(sequence.chain.keys[: length // PAGE])
        state = self.states.known[sequence.chain.keys[place // PAGE - 1]] if place else NONE
        if place:
            self.states.share(state)
        self._let_go(sequence)
        sequence.state, sequence.passing = state, None
        return place

    def _let_go(self, sequence: KvSequence) -> None:
        """Hold no state."""
        for state in (sequence.state, sequence.before):
            if state != NONE:
                self.states.release(state)
        sequence.state = sequence.before = NONE

    def _settle(self, sequence: KvSequence, whole: bool) -> None:
        """A step with guesses is done: go on from the state after it if all were right, else from the one before."""
        kept, lost = (sequence.state, sequence.before) if whole else (sequence.before, sequence.state)
        sequence.state, sequence.before = kept, NONE
        self.states.release(lost)

    def _own_state(self, sequence: KvSequence) -> bool:
        """Give a sequence a state that it may write to, idle ones giving theirs; False if there is none."""
        states, old = self.states, sequence.state
        if states.is_own(old):
            return True
        alone = old != NONE and states.holders[old] == 1
        if not states.num_free and not alone:
            if not self.obtainable_states() and (old == NONE or self._idle()[old] + 1 < states.holders[old]):
                return False
            self.evict(lambda: states.num_free > 0 or (old != NONE and states.holders[old] == 1))
        if states.num_free:
            sequence.state = states.take() if old == NONE else states.copy(old)
            if old != NONE:
                states.release(old)
        elif old in states.keys:  # nobody else holds it: what comes next takes its place
            states.forget(states.keys[old])
        return states.is_own(sequence.state)
