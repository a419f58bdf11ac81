"""The shared memory of a group of ranks: where words, slots and mailboxes lie, and by which rules ranks use them.

Collectives. Each rank has two alternating slots of `CHUNKS` chunks, and one flag for each chunk. A payload is a string
of bytes, exchanged in pieces of at most one slot. Piece n of a rank, counted from 1 over the life of the group, lies in
slot n % 2. A rank writes a chunk of its piece and sets the chunk's flag to n; it reads that chunk of another rank once
that rank's flag is at least n. In every piece of a collective all ranks set and await the flags of as many chunks as
the longest payload has in its first piece, also where they have fewer bytes. So a flag of n + 1 in a collective says
that its rank has read that chunk of piece n; in a later collective, that it has read all of piece n. A rank that has
seen flags of n + 1 from all others may overwrite the chunk in slot n % 2: nothing is acknowledged.

Mailboxes. For each ordered pair of ranks there is a ring of cells. The sender counts the cells it has written, the
receiver those it has read. An array takes one cell, or several if it is larger than a cell.

Waiting. A rank that waits for long parks: it counts itself in the `PARKED` word of the rank that it waits for, and
sleeps on that rank's `WAKE_UPS`, which the rank raises when it has written and the count is not 0. Sleeps are short:
one that is not ended in time costs time, and nothing else.
"""

from dataclasses import dataclass

from sporelm.errors import BackendError

LINE = 128  # bytes between words of different writers: two cache lines, which CPUs fetch together
CHUNK_BYTES = 4096
CHUNKS = 64  # of a slot
SLOT_BYTES = CHUNK_BYTES * CHUNKS
CELL_BYTES = 32768
CELLS = 8  # of a ring

MAGIC = 0x5350_4F52_4752_5032
# words of the header
SIZE, HAS_SLOTS, STRIDE, ABORT = 8, 16, 24, LINE
HEADER_BYTES = 2 * LINE
# and of each rank: its counts of pieces, and of the chunks that are complete in a collective; of the threads that sleep
# until it writes, and of its wake-ups; whether it is attached
SEQUENCE, COMPLETED = 0, 8
PARKED, WAKE_UPS = LINE, LINE + 8
ATTACHED = 2 * LINE
RANK_BYTES = 3 * LINE
# and of each ordered pair
SENT, RECEIVED = 0, LINE
PAIR_BYTES = 2 * LINE


@dataclass(frozen=True)
class GroupLayout:
    """Offsets in the memory of a group of `size` ranks.

    has_slots  there are collectives
    stride     ranks send to each other if their numbers differ by a multiple of it; 0: no rank sends
    """

    size: int
    has_slots: bool = True
    stride: int = 1

    def rank(self, rank: int) -> int:
        """Return the offset of a rank's words."""
        return HEADER_BYTES + rank * RANK_BYTES

    def flags(self, rank: int) -> int:
        """Return the offset of the flag of a rank's first chunk; the others follow, `LINE` bytes apart."""
        return self.rank(self.size) + rank * CHUNKS * LINE

    def pair(self, source: int, target: int) -> int:
        """Return the offset of the words of a mailbox."""
        return self.flags(self.size) + (source * self.size + target) * PAIR_BYTES

    def slots(self, rank: int) -> int:
        """Return the offset of a rank's two slots. Raises BackendError for a group without collectives."""
        if not self.has_slots:
            raise BackendError("group of ranks: its memory has no room for collectives. Create it with has_slots.")
        return self.words_end + rank * 2 * SLOT_BYTES

    def ring(self, source: int, target: int) -> int:
        """Return the offset of the cells of a mailbox. Raises BackendError for ranks that do not send to each other."""
        if not self.stride or (source - target) % self.stride:
            raise BackendError(
                f"group of ranks: its memory has no mailbox from rank {source} to rank {target} "
                f"(stride {self.stride}). Create it with stride 1."
            )
        length = -(-self.size // self.stride)  # ranks that send to each other
        number = (source % self.stride * length + source // self.stride) * length + target // self.stride
        return self._rings_start + number * CELLS * CELL_BYTES

    @property
    def words_end(self) -> int:
        """The offset past all words, which is a multiple of a chunk."""
        return -(-self.pair(self.size, 0) // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def _rings_start(self) -> int:
        return self.words_end + self.has_slots * self.size * 2 * SLOT_BYTES

    @property
    def nbytes(self) -> int:
        length = -(-self.size // self.stride) if self.stride else 0
        return self._rings_start + self.stride * length**2 * CELLS * CELL_BYTES
