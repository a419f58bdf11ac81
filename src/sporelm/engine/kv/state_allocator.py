"""The allocator of recurrent states: which slots are free, how many holders the others have, which are snapshots.

A recurrent state is what layers without attention keep of a whole text. Each token overwrites it: a text can only be
continued from a position whose state was kept. A snapshot is a state that is known by the hash of the text's last page
(prefix_cache.py). It is never written to; a sequence that continues from it gets a copy first. A snapshot without a
holder stays findable until its slot is allocated again. That happens only when no other slot is free, and to the least
recently used snapshot first.
"""

from collections import OrderedDict
from collections.abc import Iterable

from sporelm.engine.kv.prefix_cache import PageHash
from sporelm.errors import BackendError


class StateAllocator:
    """`num_slots` slots, numbered from 0, each with a reference count. Bookkeeping, no memory."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.ref_counts = [0] * num_slots
        self.uncached = list(range(num_slots - 1, -1, -1))  # a stack: memory is touched as late as possible
        self.cached: OrderedDict[int, None] = OrderedDict()  # snapshots without a holder, least recently used first
        self.hash_of_slot: dict[int, PageHash] = {}
        self.slot_of_hash: dict[PageHash, int] = {}
        # (source, target), which the next step copies in this order before it computes anything
        self.copies: list[tuple[int, int]] = []

    def allocate(self) -> int:
        """Return a free slot with a reference count of 1. Changes the allocator.

        Raises BackendError if no slot is free: check `num_free` first.
        """
        if self.uncached:
            slot = self.uncached.pop()
        elif self.cached:
            slot, _ = self.cached.popitem(last=False)
            del self.slot_of_hash[self.hash_of_slot.pop(slot)]
        else:
            raise BackendError(
                f"recurrent states: no slot is free (all {self.num_slots} are held). Release some first."
            )
        self.ref_counts[slot] = 1
        return slot

    def share(self, slot: int) -> None:
        """Add a holder. Changes the allocator."""
        if not self.ref_counts[slot]:
            if slot not in self.cached:
                raise BackendError(f"recurrent states: slot {slot} is free and cannot be shared")
            del self.cached[slot]
        self.ref_counts[slot] += 1

    def release(self, slot: int) -> None:
        """Remove a holder; without any the slot is free. Changes the allocator."""
        if not self.ref_counts[slot]:
            raise BackendError(f"recurrent states: slot {slot} is free and cannot be released")
        self.ref_counts[slot] -= 1
        if not self.ref_counts[slot]:
            if slot in self.hash_of_slot:
                self.cached[slot] = None
            else:
                self.uncached.append(slot)

    def allocate_copy(self, slot: int) -> int:
        """Return a new slot, into which the next step copies this one. Changes the allocator."""
        target = self.allocate()
        self.copies.append((slot, target))
        return target

    def pop_copies(self) -> tuple[tuple[int, int], ...]:
        """Return the copies that the next step has to make before it computes anything. Changes the allocator."""
        copies = tuple(self.copies)
        self.copies = []
        return copies

    def is_writable(self, slot: int) -> bool:
        """Return whether the holder of a slot may write to it. Changes nothing."""
        return slot >= 0 and self.ref_counts[slot] == 1 and slot not in self.hash_of_slot

    def insert(self, slot: int, page_hash: PageHash) -> None:
        """Make a held slot a snapshot. If there is one for this text, mark that as recently used. Changes the
        allocator."""
        existing = self.slot_of_hash.get(page_hash)
        if existing is None:
            self.hash_of_slot[slot] = page_hash
            self.slot_of_hash[page_hash] = slot
        elif existing in self.cached:
            self.cached.move_to_end(existing)

    def remove(self, page_hash: PageHash) -> None:
        """Forget the snapshot of a text, if there is one. Changes the allocator."""
        slot = self.slot_of_hash.pop(page_hash, None)
        if slot is not None:
            del self.hash_of_slot[slot]
            if slot in self.cached:
                del self.cached[slot]
                self.uncached.append(slot)

    @property
    def num_free(self) -> int:
        return len(self.uncached) + len(self.cached)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise BackendError unless `held`, a slot for each holder, accounts for all. Changes nothing."""
        counted = [0] * self.num_slots
        for slot in held:
            counted[slot] += 1
        for slot, (expected, found) in enumerate(zip(self.ref_counts, counted, strict=True)):
            if expected != found:
                raise BackendError(
                    f"recurrent states: slot {slot} has a reference count of {expected}, but {found} holders"
                )
        idle = {slot for slot, count in enumerate(self.ref_counts) if not count}
        if self.num_free != len(idle) or {*self.uncached, *self.cached} != idle:
            raise BackendError(
                f"recurrent states: {self.num_free} slots are listed as free, but {len(idle)} have no holder"
            )
        by_hash = {page_hash: slot for slot, page_hash in self.hash_of_slot.items()}
        if by_hash != self.slot_of_hash or not self.cached.keys() <= self.hash_of_slot.keys():
            raise BackendError(
                f"recurrent states: {len(self.slot_of_hash)} snapshots have a hash, but {len(by_hash)} slots name one"
            )
        if strays := [slot for slot in self.uncached if slot in self.hash_of_slot]:
            raise BackendError(f"recurrent states: slot {strays[0]} is listed as uncached, but it is a snapshot")
