"""The KV cache: the pages and recurrent states of all sequences, and which sequences give way when they run out.

Sequences that no running request uses are idle: their pages go to requests that need some, the least recently used
first. What an idle sequence loses is offloaded, if there is an offload store, and recomputed otherwise.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from sporelm.engine.kv.kv_sequence import NO_STATE, KvSequence
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.kv.page_allocator import PageAllocator, count_pages
from sporelm.engine.kv.prefix_cache import PageHash, PageHashes, PrefixCache, common_prefix_length
from sporelm.engine.kv.state_allocator import StateAllocator
from sporelm.engine.kv.state_snapshots import StateSnapshots
from sporelm.errors import BackendError, RequestError
from sporelm.ops.paged_attention import PAGE

PageCopies = list[tuple[int, int]]  # (source, target), to be carried out in this order before the step's writes


class KvCache:
    """All sequences over one set of pages, and of recurrent states for models that keep some."""

    def __init__(
        self, num_pages: int, num_states: int = 0, snapshot_interval: int = 0, offload_store: OffloadStore | None = None
    ) -> None:
        """`snapshot_interval`: pages between two state snapshots of a text that stay."""
        self.prefix_cache = PrefixCache()
        self.pages = PageAllocator(num_pages, self.prefix_cache)
        self.states: StateAllocator | None = None
        self.snapshots: StateSnapshots | None = None
        if num_states:
            self.states = StateAllocator(num_states)
            self.snapshots = StateSnapshots(self.states, snapshot_interval)
            self.prefix_cache.on_remove = self.states.remove  # without its page a snapshot is useless
        self.offload_store = offload_store
        self.sequences: dict[int, KvSequence] = {}  # by id, least recently used first

    # ---- sequences

    def new_sequence(self, cache_salt: str = "", adapter: str = "", *, is_private: bool = False) -> KvSequence:
        """Return an empty sequence, which shares pages with others of the same salt and adapter only; a private one
        with none. Changes the cache."""
        sequence = KvSequence(cache_salt, adapter, is_private=is_private)
        if self.states is not None:
            sequence.state_slot = NO_STATE
        self.sequences[sequence.id] = sequence
        return sequence

    def fork(self, source: KvSequence) -> KvSequence:
        """Return a sequence with the content of `source`, in the same pages. Changes the cache.

        Nothing is copied yet: the sequence that first writes to a shared page, the last and partly filled one, gets its
        own copy then (`reserve`).
        """
        child = self.new_sequence()
        child.tokens = list(source.tokens)
        child.page_hashes = source.page_hashes.copy()
        child.set_pages(source.pages[: count_pages(source.length)])
        self.pages.share(child.pages)
        if self.offload_store is not None:
            self.offload_store.share(source, child)
        if self.snapshots is not None:
            self.snapshots.share(source, child)
        return child

    def drop(self, sequence: KvSequence) -> None:
        """Forget a sequence. Changes the cache. Dropping it again does nothing."""
        self.truncate(sequence, 0)
        self.sequences.pop(sequence.id, None)
        if self.offload_store is not None:
            self.offload_store.forget(sequence)

    def acquire(self, sequence: KvSequence) -> None:
        """Mark a sequence as used by a running request, and as most recently used. Changes the cache."""
        if sequence.id not in self.sequences:
            raise RequestError(f"sequence {sequence.id} was dropped. Begin a new one.")
        self.sequences[sequence.id] = self.sequences.pop(sequence.id)
        sequence.is_in_use = True

    def release(self, sequence: KvSequence) -> None:
        """Mark a sequence as idle. Changes the cache: states that launched steps write are given back."""
        sequence.is_in_use = False
        self.discard_launches(sequence)

    # ---- content

    def truncate(self, sequence: KvSequence, length: int) -> None:
        """Keep the first `length` positions at most, fewer if only an earlier state is kept. Changes the cache."""
        if self.snapshots is not None and length < sequence.length:
            length = self.snapshots.rewind(sequence, length)
        self._cut_pages(sequence, length)
        if self.snapshots is not None and not sequence.tokens:
            self.snapshots.release(sequence)

    def extend(self, sequence: KvSequence, tokens: Sequence[int]) -> None:
        """Note that a step has computed these tokens. Full pages enter the prefix cache. Changes the cache."""
        held = sequence.tokens
        held.extend(tokens)
        if sequence.is_private:
            return
        page_hashes = sequence.page_hashes
        if len(held) // PAGE != len(page_hashes.hashes):
            for number in page_hashes.extend(held):
                page_tokens = held[number * PAGE : (number + 1) * PAGE]
                parent = page_hashes.parent_of(number)
                self.prefix_cache.insert(sequence.pages[number], page_hashes.hashes[number], parent, page_tokens)
        if self.snapshots is not None and tokens and not len(held) % PAGE:
            self.snapshots.take(sequence)

    def rollback_step(self, sequence: KvSequence) -> None:
        """Undo what a failed step may have changed. Changes the cache.

        Pages need nothing: the step wrote past the positions that are held. A state goes back to its last snapshot.
        """
        if self.snapshots is None:
            return
        self.discard_launches(sequence)
        if sequence.draft_base_slot != NO_STATE:  # the step did not write to that slot
            self.snapshots.end_draft(sequence, is_accepted=False)
        elif sequence.tokens:
            self._cut_pages(sequence, self.snapshots.rewind(sequence, sequence.length))
        if not sequence.tokens:
            self.snapshots.release(sequence)

    def invalidate(self, sequence: KvSequence) -> None:
        """Empty a sequence whose pages hold wrong values, and remove these from the prefix cache. Changes both."""
        for page in sequence.pages:
            self.prefix_cache.remove(page)
        self.truncate(sequence, 0)

    def invalidate_all(self) -> None:
        """Empty all sequences and the prefix cache, because the memory was lost. Changes both; offloaded content stays
        valid."""
        for sequence in self.sequences.values():
            self.invalidate(sequence)
        self.pages.uncache_all()

    def set_adapter(self, sequence: KvSequence, adapter: str) -> None:
        """Compute a sequence with this adapter from now on; what another one computed is dropped. Changes the cache."""
        if sequence.page_hashes.adapter != adapter:
            self.truncate(sequence, 0)
            if self.offload_store is not None:
                self.offload_store.forget(sequence)
            sequence.page_hashes = PageHashes(sequence.page_hashes.cache_salt, adapter)

    # ---- prefixes

    def usable_length(self, sequence: KvSequence, length: int) -> int:
        """Return how many positions a sequence would hold after `truncate(sequence, length)`. Changes nothing."""
        if self.snapshots is None or length >= sequence.length:
            return min(length, sequence.length)
        return self.snapshots.last_position(sequence.page_hashes.hashes[: length // PAGE])

    def find_prefix(self, hashes: Sequence[PageHash]) -> list[int]:
        """Return the pages of the longest cached prefix from which a sequence can continue. Changes nothing."""
        pages = self.prefix_cache.find_pages(hashes)
        if self.snapshots is None:
            return pages
        return pages[: self.snapshots.last_position(hashes[: len(pages)]) // PAGE]

    def attach_prefix(
        self, sequence: KvSequence, pages: Sequence[int], ids: Sequence[int], hashes: Sequence[PageHash]
    ) -> None:
        """Replace a sequence's content by cached pages, which `find_prefix` returned for `ids`. Changes the cache."""
        slot = NO_STATE
        if self.states is not None:
            slot = self.states.slot_of_hash[hashes[len(pages) - 1]]
            self.states.share(slot)
        self.pages.share(pages)
        self.truncate(sequence, 0)
        sequence.tokens = list(ids[: len(pages) * PAGE])
        sequence.page_hashes.hashes = list(hashes[: len(pages)])
        sequence.set_pages(list(pages))
        if self.states is not None:
            sequence.state_slot = slot

    def explain_miss(self, page_hashes: PageHashes, number: int, page_tokens: Sequence[int]) -> str:
        """Return why page `number` of a text, which holds `page_tokens`, could not be reused. Remembers the salt."""
        hashes, cached = page_hashes.hashes, self.prefix_cache.page_of_hash
        if self.snapshots is None or hashes[number] not in cached:
            return self.prefix_cache.explain_miss(page_hashes, number, page_tokens)
        end = number
        while end < len(hashes) and hashes[end] in cached:
            end += 1
        return f"no state kept between tokens {number * PAGE} and {end * PAGE}"

    # ---- room for a step

    def is_writable(self, sequence: KvSequence, position: int) -> bool:
        """Return whether a position can be written to as it is, so that `reserve` has nothing to do. Changes
        nothing."""
        number = position // PAGE
        if number >= len(sequence.pages):
            return False
        page = sequence.pages[number]
        if self.pages.ref_counts[page] != 1 or page in self.prefix_cache.hash_of_page:
            return False
        return self.states is None or self.states.is_writable(sequence.state_slot)

    def reserve(self, sequence: KvSequence, end: int, copies: PageCopies) -> bool:
        """Make the positions from the sequence's length up to `end` writable; False if too few pages can be freed.

        May evict idle sequences. A shared page that will be written to is replaced by a copy (copy on write); the
        copying itself is appended to `copies`. Changes the cache.
        """
        if end and not self._can_reserve_state(sequence):
            return False
        return self._reserve_pages(sequence, end, copies) and (not end or self._reserve_state(sequence))

    def set_snapshot_positions(self, sequence: KvSequence, length: int, hashes: Sequence[PageHash]) -> None:
        """Choose where a sequence keeps state snapshots until it has `length` positions, whose full pages have these
        hashes. Changes the sequence."""
        if self.snapshots is not None:
            last = (length - 1) // PAGE
            # Where a text leaves a cached one, other texts may leave it too.
            branching = len(self.prefix_cache.find_pages(hashes[:last]))
            sequence.snapshot_positions = (branching * PAGE, last * PAGE)

    def max_step_end(self, sequence: KvSequence, end: int, held: int | None = None) -> int:
        """Return how far towards `end` a step may go from `held` positions, by default those of the sequence. Changes
        nothing."""
        if self.snapshots is None or sequence.is_private:
            return end
        return self.snapshots.max_step_end(sequence, len(sequence.tokens) if held is None else held, end)

    def can_allocate(self, num_pages: int, num_states: int) -> bool:
        """Return whether `num_pages` more pages and `num_states` more states could be allocated. Changes nothing."""
        if num_pages > self.num_obtainable_pages():
            return False
        return self.states is None or num_states <= self.num_obtainable_states()

    def num_missing_states(self, sequence: KvSequence) -> int:
        """Return how many states a sequence needs before it can be computed. Changes nothing."""
        return 0 if self.states is None or self.states.is_writable(sequence.state_slot) else 1

    def describe_shortage(self, sequence: KvSequence) -> str:
        """Return how much there is of what `reserve` has lacked. Changes nothing."""
        if self.states is not None and not self._can_reserve_state(sequence):
            return f"and all {self.states.num_slots} recurrent states are in use"
        return f"{self.num_obtainable_pages()} are available"

    def free_pages(self, num_pages: int) -> bool:
        """Evict idle sequences until `num_pages` are free; False, and none evicted, if that is impossible."""
        if self.pages.num_free >= num_pages:
            return True
        if self.num_obtainable_pages() < num_pages:
            return False
        self.evict_until(lambda: self.pages.num_free >= num_pages)
        return True

    def evict_until(self, is_enough: Callable[[], bool]) -> None:
        """Evict idle sequences, the least recently used first, until it is enough or none is left. Changes the
        cache."""
        for sequence in list(self.sequences.values()):
            if is_enough():
                return
            if sequence.pages and not sequence.is_in_use:
                if self.offload_store is not None:
                    self.offload_store.offload(sequence)
                self.truncate(sequence, 0)

    def num_obtainable_pages(self) -> int:
        """Return how many pages are free or held by idle sequences only. Changes nothing."""
        idle: dict[int, int] = {}
        for sequence in self.sequences.values():
            if not sequence.is_in_use:
                for page in sequence.pages:
                    idle[page] = idle.get(page, 0) + 1
        return self.pages.num_free + sum(self.pages.ref_counts[page] == count for page, count in idle.items())

    def num_obtainable_states(self) -> int:
        """Return how many states are free or held by idle sequences only. Changes nothing."""
        states = self.states
        if states is None:
            return 0
        return states.num_free + sum(states.ref_counts[slot] == count for slot, count in self._idle_states().items())

    # ---- steps that are launched before the step in flight is committed (ADR 0047)

    def reserve_ahead(self, sequence: KvSequence, end: int, copies: PageCopies) -> bool:
        """Make the positions up to `end` writable for a step after the one in flight; False if that must wait.

        As `reserve`, but the state that the step in flight writes is copied: it is needed if this step is discarded.
        Changes the cache.
        """
        states = self.states
        if states is not None and not self.num_obtainable_states():
            return False
        if not self._reserve_pages(sequence, end, copies):
            return False
        if states is None:
            return True
        self.evict_until(lambda: states.num_free > 0)
        latest = sequence.launched_slots[-1] if sequence.launched_slots else sequence.state_slot
        sequence.launched_slots.append(states.allocate_copy(latest))
        return True

    def commit_launch(self, sequence: KvSequence, slot: int) -> None:
        """Take over the state in `slot`, which a committed step has written, unless it is the sequence's own already.
        Changes both."""
        if self.states is not None and slot in sequence.launched_slots[:1]:
            self.states.release(sequence.state_slot)
            sequence.state_slot = sequence.launched_slots.pop(0)

    def discard_launches(self, sequence: KvSequence) -> None:
        """Give back the states that launched steps write, whose results do not count. Changes both."""
        if self.states is not None:
            while sequence.launched_slots:
                self.states.release(sequence.launched_slots.pop())

    # ---- drafts

    def fit_drafts(self, sequence: KvSequence, end: int, draft: Sequence[int]) -> Sequence[int]:
        """Return the part of a draft after position `end` that needs no eviction. Changes nothing."""
        if self.snapshots is not None:
            draft = draft[: -end % PAGE]  # a snapshot can be taken there
        if not draft:
            return ()
        draft_end = end + len(draft)
        has_room = count_pages(draft_end) - len(sequence.pages) + 1 <= self.pages.num_free
        return draft if has_room or draft_end <= len(sequence.pages) * PAGE else ()

    def begin_draft(self, sequence: KvSequence) -> bool:
        """Prepare to roll back a draft (`accept_draft`, `rollback_draft`); False if there is no room for that. Changes
        the sequence."""
        return self.snapshots is None or self.snapshots.begin_draft(sequence)

    def accept_draft(self, sequence: KvSequence, tokens: Sequence[int], num_outputs: int, num_sampled: int) -> bool:
        """Take in the tokens of a step: the known ones, then `num_outputs` - 1 draft tokens. Changes the cache.

        The first `num_sampled` - 1 draft tokens were accepted. Returns True if it is settled what the sequence holds;
        False if only the known tokens are held, and the accepted ones are still to be added one by one (`extend`).
        """
        if self.snapshots is None or sequence.draft_base_slot == NO_STATE:
            self.extend(sequence, tokens[: len(tokens) - num_outputs + 1])
            return False
        is_accepted = num_sampled == num_outputs
        self.snapshots.end_draft(sequence, is_accepted=is_accepted)
        if is_accepted:
            self.extend(sequence, tokens)
        return True

    def rollback_draft(self, sequence: KvSequence, length: int) -> None:
        """Go back to the `length` positions before a draft. Changes the cache."""
        if self.snapshots is None:
            return
        if sequence.draft_base_slot != NO_STATE:
            self.snapshots.end_draft(sequence, is_accepted=False)
        self._cut_pages(sequence, length)  # also after a failed step, whose state is the one before (`rollback_step`)

    # ---- copies of states

    def pop_state_copies(self) -> tuple[tuple[int, int], ...]:
        """Return the states (source, target) that the next step copies before it computes anything. Changes the
        cache."""
        return () if self.states is None else self.states.pop_copies()

    @property
    def has_state_copies(self) -> bool:
        """Whether the next step has states to copy."""
        return self.states is not None and bool(self.states.copies)

    # ---- offloading

    def is_offloaded(self, sequence: KvSequence) -> bool:
        """Return whether a sequence was evicted and its content is in the offload store."""
        return self.offload_store is not None and bool(self.offload_store.tokens_of(sequence))

    def restore(self, sequence: KvSequence, ids: Sequence[int], copies: PageCopies) -> None:
        """Bring back what a sequence held when it was evicted, as far as `ids` begin with it and it holds less now.

        Changes the cache and, at once, the memory of its pages. Does nothing while there are `copies` to carry out:
        pages that would be written now may be their sources. Of a recurrent model only a whole text can be restored:
        the state is that of its last token.
        """
        store = self.offload_store
        if store is None or copies or self.has_state_copies or not (tokens := store.tokens_of(sequence)):
            return
        end = common_prefix_length(tokens, ids)
        if self.snapshots is not None:
            if not sequence.length < len(tokens) == end:
                store.forget(sequence)
                return
            self.snapshots.release(sequence)
        self._restore_pages(store, sequence, tokens, end)
        if self.snapshots is not None and sequence.length < len(tokens):  # too few pages, or it was lost
            self.rollback_step(sequence)

    def check_integrity(self) -> None:
        """Raise BackendError unless pages, states and sequences agree. Changes nothing."""
        sequences = self.sequences.values()
        self.pages.check_integrity(sequence.pages for sequence in sequences)
        if self.states is None:
            return
        slots = [
            slot
            for each in sequences
            for slot in (each.state_slot, each.draft_base_slot, *each.launched_slots)
            if slot != NO_STATE
        ]
        self.states.check_integrity(slots)
        if lost := [each for each in sequences if each.tokens and each.state_slot == NO_STATE]:
            raise BackendError(f"recurrent states: {lost[0]} has no state")
        if self.states.slot_of_hash.keys() - self.prefix_cache.page_of_hash.keys():
            raise BackendError("recurrent states: a snapshot has the hash of a page that is not cached")

    # ---- details

    def _cut_pages(self, sequence: KvSequence, length: int) -> None:
        num_kept = count_pages(min(length, sequence.length))
        if num_kept < len(sequence.pages):
            self.pages.release(sequence.pages[num_kept:])
            sequence.set_pages(sequence.pages[:num_kept])
        del sequence.tokens[length:]
        del sequence.page_hashes.hashes[len(sequence.tokens) // PAGE :]

    def _reserve_pages(self, sequence: KvSequence, end: int, copies: PageCopies) -> bool:
        pages = sequence.pages
        first = len(sequence.tokens) // PAGE
        ref_counts = self.pages.ref_counts
        is_shared = first < len(pages) and ref_counts[pages[first]] > 1
        if not is_shared and end <= len(pages) * PAGE:
            self._uncache_page(sequence, first)
            return True
        num_missing = max(0, count_pages(end) - len(pages))
        if not self.free_pages(num_missing + is_shared):
            # If idle sequences are the other holders, evicting them makes the copy unnecessary.
            if not is_shared or not self.free_pages(num_missing):
                return False
            self.evict_until(lambda: ref_counts[pages[first]] == 1)
        is_shared = is_shared and ref_counts[pages[first]] > 1
        if self.pages.num_free < num_missing + is_shared:
            return False
        grown = list(pages)
        if is_shared:
            target = self.pages.allocate()
            copies.append((pages[first], target))
            self.pages.release([pages[first]])
            grown[first] = target
        grown.extend(self.pages.allocate() for _ in range(num_missing))
        sequence.set_pages(grown)
        self._uncache_page(sequence, first)
        return True

    def _uncache_page(self, sequence: KvSequence, number: int) -> None:
        """Remove a page that is about to be written to from the prefix cache."""
        if number < len(sequence.pages):
            self.prefix_cache.remove(sequence.pages[number])

    def _can_reserve_state(self, sequence: KvSequence) -> bool:
        """Return whether `_reserve_state` can succeed. Changes nothing."""
        states, slot = self.states, sequence.state_slot
        if states is None or states.is_writable(slot) or states.num_free or self.num_obtainable_states():
            return True
        return slot != NO_STATE and self._idle_states()[slot] + 1 >= states.ref_counts[slot]

    def _reserve_state(self, sequence: KvSequence) -> bool:
        """Give a sequence a state that it may write to, evicting idle sequences; False if there is none."""
        states = self.states
        if states is None:
            return True
        old = sequence.state_slot
        if states.is_writable(old):
            return True
        is_only_holder = old != NO_STATE and states.ref_counts[old] == 1
        if not states.num_free and not is_only_holder:
            self.evict_until(lambda: states.num_free > 0 or (old != NO_STATE and states.ref_counts[old] == 1))
        if states.num_free:
            sequence.state_slot = states.allocate() if old == NO_STATE else states.allocate_copy(old)
            if old != NO_STATE:
                states.release(old)
        elif old in states.hash_of_slot:  # no other sequence holds it: the next step overwrites the snapshot
            states.remove(states.hash_of_slot[old])
        return states.is_writable(sequence.state_slot)

    def _idle_states(self) -> Counter[int]:
        """Return how many idle sequences hold each state."""
        return Counter(
            each.state_slot for each in self.sequences.values() if not each.is_in_use and each.state_slot != NO_STATE
        )

    def _restore_pages(self, store: OffloadStore, sequence: KvSequence, tokens: Sequence[int], end: int) -> None:
        if end > sequence.length:
            first = sequence.length // PAGE
            self._cut_pages(sequence, first * PAGE)
            if not self.reserve(sequence, end, []):
                return
            if store.restore(sequence, first, count_pages(end)):
                self.extend(sequence, tokens[first * PAGE : end])
        store.forget(sequence)
