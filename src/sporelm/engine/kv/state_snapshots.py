"""Snapshots of recurrent states: at which positions they are kept, and how a sequence goes back to one.

A page table can be cut anywhere, a recurrent state cannot. A snapshot is therefore kept where a step ends with a full
page, under that page's hash. A text that is cut goes back to its last snapshot, and the rest is recomputed. Snapshots
at a multiple of `interval` from the beginning, at a prompt's last full page, and where a prompt parts from a cached
text stay until others need the room. Of those in between a sequence keeps only its newest: the transient snapshot.
"""

from collections.abc import Sequence

from sporelm.engine.kv.kv_sequence import NO_STATE, KvSequence
from sporelm.engine.kv.prefix_cache import PageHash
from sporelm.engine.kv.state_allocator import StateAllocator
from sporelm.ops.paged_attention import PAGE


class StateSnapshots:
    """The states and snapshots of sequences, in the slots of an allocator; `interval_pages` lie between two snapshots
    that stay."""

    def __init__(self, states: StateAllocator, interval_pages: int) -> None:
        self.states = states
        self.interval = interval_pages * PAGE

    def last_position(self, hashes: Sequence[PageHash]) -> int:
        """Return the last position of a text, given its page hashes, at which there is a snapshot. Changes nothing."""
        slots = self.states.slot_of_hash
        return next((number * PAGE for number in range(len(hashes), 0, -1) if hashes[number - 1] in slots), 0)

    def max_step_end(self, sequence: KvSequence, held: int, end: int) -> int:
        """Return how far from `held` positions towards `end` a step may go, so that it ends where a snapshot is wanted.
        Changes nothing."""
        next_interval = (held // self.interval + 1) * self.interval
        return min(end, next_interval, *(position for position in sequence.snapshot_positions if position > held))

    def take(self, sequence: KvSequence) -> None:
        """Keep the state of a sequence whose last page has just become full. Changes the sequence and the slots."""
        page_hash = sequence.page_hashes.hashes[-1]
        length = len(sequence.tokens)
        self.states.insert(sequence.state_slot, page_hash)
        if sequence.transient_snapshot is not None and sequence.transient_snapshot != page_hash:
            self.states.remove(sequence.transient_snapshot)
        is_lasting = not length % self.interval or length in sequence.snapshot_positions
        sequence.transient_snapshot = None if is_lasting else page_hash

    def share(self, source: KvSequence, child: KvSequence) -> None:
        """Give a fork the state of its source. Changes the fork and the slots."""
        if source.tokens:
            self.states.share(source.state_slot)
            child.state_slot = source.state_slot

    def rewind(self, sequence: KvSequence, length: int) -> int:
        """Go back to the last snapshot within `length` positions, or to no state; return its position. Changes the
        sequence's state, not its pages."""
        hashes = sequence.page_hashes.hashes
        position = self.last_position(hashes[: length // PAGE])
        slot = self.states.slot_of_hash[hashes[position // PAGE - 1]] if position else NO_STATE
        if position:
            self.states.share(slot)
        self.release(sequence)
        sequence.state_slot = slot
        sequence.transient_snapshot = None
        return position

    def release(self, sequence: KvSequence) -> None:
        """Give back all slots of a sequence. Changes both."""
        for slot in (sequence.state_slot, sequence.draft_base_slot, *sequence.launched_slots):
            if slot != NO_STATE:
                self.states.release(slot)
        sequence.state_slot = NO_STATE
        sequence.draft_base_slot = NO_STATE
        sequence.launched_slots.clear()

    def begin_draft(self, sequence: KvSequence) -> bool:
        """Let the next step write to a copy of the state; False if no slot is free. Changes both."""
        if sequence.draft_base_slot == NO_STATE and self.states.num_free:
            sequence.draft_base_slot = sequence.state_slot
            sequence.state_slot = self.states.allocate_copy(sequence.state_slot)
        return sequence.draft_base_slot != NO_STATE

    def end_draft(self, sequence: KvSequence, *, is_accepted: bool) -> None:
        """Continue from the state after the draft if all of it was accepted, else from the one before. Changes both."""
        after, before = sequence.state_slot, sequence.draft_base_slot
        sequence.state_slot = after if is_accepted else before
        sequence.draft_base_slot = NO_STATE
        self.states.release(before if is_accepted else after)
