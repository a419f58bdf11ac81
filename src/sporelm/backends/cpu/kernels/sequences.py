"""Which rows of a step are whose, and the states that sequences carry from row to row."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, i32, i64

SEQUENCES = "starts:p lengths:p slots:p state:p slot_bytes:i row_bytes:i"


def vectors_of(target: Any) -> int:
    """Vectors of a tile of columns: two sums and a factor for each shall stay in registers, of which some have 16."""
    return 2 if target.lanes == 8 or target.name == "generic" else 4


def columns_of(target: Any) -> int:
    """Columns of a tile."""
    return vectors_of(target) * int(target.lanes)


def rows_of_sequence(k: Builder, f: Any, sequence: Val) -> tuple[Val, Val, Val]:
    """Where a sequence's rows begin and end in this step, and whether the sequence begins with them."""
    start, stop = (k.load(i32, f.starts, (sequence + n) * 4).sext(i64) for n in (0, 1))
    return start, stop, (stop - start).equals(k.load(i32, f.lengths, sequence * 4).sext(i64))


def state_of(k: Builder, f: Any, sequence: Val) -> Val:
    """The address of a sequence's state."""
    return k.at(f.state, k.load(i32, f.slots, sequence * 4).sext(i64) * f.slot_bytes)
