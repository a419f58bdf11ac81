"""Layout for terminals of any width: folded lines, labels beside or above their text, tables or records.

The width is that of standard output if it is a terminal. A file or a pipe has none, and lines are not folded.
"""

import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

NARROW = 60  # columns below which a table of measurements is printed as one record per row
MIN_BESIDE = 24  # columns that text beside a label needs; with fewer it stands below the label
# A word, or a figure with its unit.
_WORD = re.compile(
    r"[(~]?[-\d.,]*\d (?:[kMGT]?B|[kMGT]|%|tok/s|[kMGT]?B/s|bits?|bytes?|tokens?|cores?|files?)(?![^\s,;:.)])\S*|\S+"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of a stream (default: standard output), None where it is not a terminal or has no size.

    COLUMNS, where it is a positive number, decides before the terminal's own size.
    """
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return None
    return shutil.get_terminal_size((0, 0)).columns or None


def columns_of(text: str) -> int:
    """Return the columns that text takes on a terminal: none for colours and combining marks, two for wide signs."""
    text = _ESCAPE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def fold(line: str, width: int | None, indent: int | None = None) -> list[str]:
    """Fold one line at spaces so that it fits `width` columns; a word that is longer stays whole.

    Lines after the first begin `indent` columns in (default: two more than the line itself). Spaces that only pad
    columns are squeezed in a line that is folded.
    """
    if width is None or columns_of(line) <= width:
        return [line]
    own = len(line) - len(line.lstrip(" "))
    first = min(own, width // 4)
    rest = min(own + 2 if indent is None else indent, width // 4)
    lines: list[str] = []
    current, used = " " * first, first
    for word in _WORD.findall(line):
        space = 0 if not current.strip() else 1
        if space and used + space + columns_of(word) > width:
            lines.append(current)
            current, used, space = " " * rest, rest, 0
        current += " " * space + word
        used += space + columns_of(word)
    return [*lines, current]


def label_text(label: str, text: str, column: int, width: int | None) -> list[str]:
    """Put text beside its label, at `column`; below the label if the terminal is too narrow."""
    beside = f"{label:<{column}}{text}".rstrip()
    if width is None or columns_of(beside) <= width:
        return [beside]
    if width - column >= MIN_BESIDE and len(label) < column:
        lines = fold(text, width - column)
        return [f"{label:<{column}}{lines[0]}", *(" " * column + line for line in lines[1:])]
    lead = len(label) - len(label.lstrip(" "))
    above = fold(label.rstrip(), width) if label.strip() else []
    indent = min(lead + 2, width // 4)
    return [*above, *(line for line in fold(" " * indent + text.lstrip(), width, indent))]


def format_table(rows: Sequence[Sequence[str]], width: int | None, right: Sequence[int] = ()) -> list[str]:
    """Lay out rows below the first row, their headings; columns in `right` are right-aligned.

    On a terminal narrower than the table, each row becomes a record: its first cell, then a line for each further
    heading and cell.
    """
    widths = [max(columns_of(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for at, (cell, size) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (size - columns_of(cell))
            cells.append(padding + cell if at in right else cell + padding)
        lines.append("  ".join(cells).rstrip())
    if width is None or max(map(columns_of, lines)) <= width:
        return lines
    records = []
    heads = rows[0]
    column = max(map(len, heads[1:]), default=0) + 3
    for row in rows[1:]:
        fields = [(f" {head}", cell) for head, cell in zip(heads[1:], row[1:], strict=True)]
        beside = [f"{head:<{column}}{cell}" for head, cell in fields]
        is_aligned = max(map(columns_of, beside), default=0) <= width
        records += fold(row[0], width)
        records += (
            beside if is_aligned else [each for head, cell in fields for each in fold(f"{head} {cell}", width, 3)]
        )
    return records


def print_folded(line: str = "", indent: int | None = None) -> None:
    """Print a line, folded where the terminal is narrower."""
    for each in fold(line, terminal_width(), indent):
        print(each)
