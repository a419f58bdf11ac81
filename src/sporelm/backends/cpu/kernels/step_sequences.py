"""The sequences of a step: the rows of each, and the states that they carry from row to row."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, i32, i64

SEQUENCE_FIELDS = "starts:p lengths:p slots:p state:p slot_bytes:i row_bytes:i"


def vectors_per_tile(target: Any) -> int:
    """Return the vectors of a tile of columns: two sums and a factor for each stay in registers, and some targets
    have 16."""
    return 2 if target.lanes == 8 or target.name == "generic" else 4


def columns_per_tile(target: Any) -> int:
    """Return the columns of a tile."""
    return vectors_per_tile(target) * int(target.lanes)


def sequence_rows(k: Builder, f: Any, sequence: Val) -> tuple[Val, Val, Val]:
    """Return the first row of a sequence, the row after its last one, and whether the sequence begins in this step."""
    start, stop = (k.load(i32, f.starts, (sequence + n) * 4).sext(i64) for n in (0, 1))
    return start, stop, (stop - start).equals(k.load(i32, f.lengths, sequence * 4).sext(i64))


def state_address(k: Builder, f: Any, sequence: Val) -> Val:
    """Return the address of a sequence's state."""
    return k.at(f.state, k.load(i32, f.slots, sequence * 4).sext(i64) * f.slot_bytes)
