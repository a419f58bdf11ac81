"""The shared memory of a group of ranks: where words, slots and mailboxes lie, and by which rules ranks use them.

Collectives. Each rank has two alternating slots of `CHUNKS` chunks, and one flag for each chunk. A payload is a string
of bytes, exchanged in pieces of at most one slot. Piece n of a rank, counted from 1 over the life of the group, lies in
slot n % 2. A rank writes a chunk of its piece and sets the chunk's flag to n; it reads a chunk of another rank once
that rank's flag is at least n. Every rank sets the same flags, also where its own payload is shorter. A rank that has
set a flag to n + 1 has read all of piece n. So whoever has seen a flag n + 1 of each rank may overwrite slot n % 2, and
no rank needs to acknowledge.

Mailboxes. For each ordered pair of ranks there is a ring of cells. The sender counts the cells it has written, the
receiver those it has read. An array takes one cell, or several if it is larger than a cell.

Waiting. A rank that waits for long parks: it counts itself in the `PARKED` word of the rank that it waits for, and
sleeps on that rank's `BELL`, which rings when the rank has written and the count is not 0. Sleeps are short: a bell
that rings too early for a sleeper costs time, and nothing else.
"""

from dataclasses import dataclass

LINE = 128  # bytes between words of different writers: two cache lines, which CPUs fetch together
CHUNK_BYTES = 4096
CHUNKS = 64  # of a slot
SLOT_BYTES = CHUNK_BYTES * CHUNKS
CELL_BYTES = 32768
CELLS = 8  # of a ring

MAGIC = 0x5350_4F52_4752_5031
# words of the header
SIZE, ABORT = 8, LINE
HEADER_BYTES = 2 * LINE
# and of each rank: its own count of pieces and of the finished chunks of a piece, its bell, and whether it is attached
SEQUENCE, COMPLETED = 0, 8
PARKED, BELL = LINE, LINE + 8
ATTACHED = 2 * LINE
RANK_BYTES = 3 * LINE
# and of each ordered pair
SENT, RECEIVED = 0, LINE
PAIR_BYTES = 2 * LINE


@dataclass(frozen=True)
class GroupLayout:
    """Offsets in the memory of a group of `size` ranks."""

    size: int

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
        """Return the offset of a rank's two slots."""
        start = -(-self.pair(self.size, 0) // CHUNK_BYTES) * CHUNK_BYTES
        return start + rank * 2 * SLOT_BYTES

    def ring(self, source: int, target: int) -> int:
        """Return the offset of the cells of a mailbox."""
        return self.slots(self.size) + (source * self.size + target) * CELLS * CELL_BYTES

    @property
    def nbytes(self) -> int:
        return self.ring(self.size, 0)
