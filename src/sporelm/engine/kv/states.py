"""The pool of recurrent states: which are free, who holds the others, and which are known by the text they follow.

A state is what layers without attention keep of a whole text. Each token changes it, and what it was before is gone: a
text is taken up again only where its state was kept. A state that is known by the key of a text's last page (prefix.py)
is never written to: whoever goes on from it has it copied first. One that nobody holds stays findable until it is
taken for something else, which happens to the longest unused first, and only when no other is free.
"""

from collections import OrderedDict
from collections.abc import Iterable

from sporelm.engine.kv.prefix import Key
from sporelm.errors import BackendError


class StatePool:
    """`count` states, numbered from 0, with the number of holders of each. Bookkeeping only, no memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders = [0] * count
        self.blank = list(range(count - 1, -1, -1))  # a stack: memory is touched as late as possible
        self.kept: OrderedDict[int, None] = OrderedDict()  # known ones that nobody holds, the longest unused first
        self.keys: dict[int, Key] = {}  # by state
        self.known: dict[Key, int] = {}  # by key
        # (source, target), to be carried out in this order before the next step
        self.copies: list[tuple[int, int]] = []

    def take(self) -> int:
        """A free state, now held once. Changes the pool. Raises BackendError if none is free: ask `num_free` before."""
        if self.blank:
            state = self.blank.pop()
        elif self.kept:
            state, _ = self.kept.popitem(last=False)
            del self.known[self.keys.pop(state)]
        else:
            raise BackendError(f"all {self.count} recurrent states are held; release some before taking one")
        self.holders[state] = 1
        return state

    def share(self, state: int) -> None:
        """One holder more. Changes the pool."""
        if not self.holders[state]:
            if state not in self.kept:
                raise BackendError(f"state {state} is free and cannot be shared")
            del self.kept[state]
        self.holders[state] += 1

    def release(self, state: int) -> None:
        """One holder less; without any it is free. Changes the pool."""
        if not self.holders[state]:
            raise BackendError(f"state {state} is free and cannot be released")
        self.holders[state] -= 1
        if not self.holders[state]:
            if state in self.keys:
                self.kept[state] = None
            else:
                self.blank.append(state)

    def copy(self, state: int) -> int:
        """A state of the caller's own that will hold what this one does. Changes the pool."""
        target = self.take()
        self.copies.append((state, target))
        return target

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """What the next step has to copy before it computes anything. Changes the pool."""
        taken, self.copies = tuple(self.copies), []
        return taken

    def is_own(self, state: int) -> bool:
        """Whether a state may be written to by its holder. Changes nothing."""
        return state >= 0 and self.holders[state] == 1 and state not in self.keys

    def keep(self, state: int, key: Key) -> None:
        """Know a held state by what it follows; where another is known by it, that one counts as used. Changes the
        pool."""
        other = self.known.get(key)
        if other is None:
            self.keys[state], self.known[key] = key, state
        elif other in self.kept:
            self.kept.move_to_end(other)

    def forget(self, key: Key) -> None:
        """Know nothing by this key any more. Changes the pool."""
        state = self.known.pop(key, None)
        if state is not None:
            del self.keys[state]
            if state in self.kept:
                del self.kept[state]
                self.blank.append(state)

    @property
    def num_free(self) -> int:
        return len(self.blank) + len(self.kept)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise BackendError unless `held`, a state for each holder, accounts for all. Changes nothing."""
        counted = [0] * self.count
        for state in held:
            counted[state] += 1
        for state, (holders, found) in enumerate(zip(self.holders, counted, strict=True)):
            if holders != found:
                raise BackendError(f"state {state} counts {holders} holders, {found} hold it")
        idle = {state for state, holders in enumerate(self.holders) if not holders}
        if self.num_free != len(idle) or {*self.blank, *self.kept} != idle:
            raise BackendError(f"{self.num_free} states are listed as free, {len(idle)} have no holder")
        if {key: state for state, key in self.keys.items()} != self.known or not self.kept.keys() <= self.keys.keys():
            raise BackendError(f"{len(self.known)} states are known by a text, {len(self.keys)} say by which")
        if strays := [state for state in self.blank if state in self.keys]:
            raise BackendError(f"state {strays[0]} is listed as blank, and as known by its text")
