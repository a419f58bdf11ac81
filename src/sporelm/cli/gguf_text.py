"""The printed form of the model-file tools: boxes, dotted leaders, colours, and escaped text of files."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.cli.terminal_layout import columns_of, fold, terminal_width
from sporelm.cli.terminal_text import escape_line, supports_colors

ESCAPES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
MAX_LEADER_COLUMNS = 56
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MAX_TEXT_CHARS = 100
MAX_TEXT_LINES = 6


class Page:
    """Prints to stdout, with colours and line-drawing characters if the terminal supports them."""

    def __init__(self, color: str = "auto") -> None:
        """`color` is "auto" (on a terminal), "always" or "never"."""
        self.has_colors = color == "always" or (color == "auto" and supports_colors(sys.stdout))
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
        self.is_unicode = encoding.startswith("utf")
        self.dot = "·" if self.is_unicode else "."
        self.width = terminal_width()

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{ESCAPES[style]}m{text}\x1b[0m" if self.has_colors else text

    def line(self, text: str = "") -> None:
        """Print lines, folded on a narrow terminal."""
        for line in text.split("\n"):
            print("\n".join(fold(line, self.width)))

    def box(self, title: str) -> None:
        """Print a title in a box; without the box if the terminal is narrower."""
        if self.width is not None and columns_of(title) + 4 > self.width:
            self.line(self.paint(title, "bold"))
            return
        corners = "╭╮╰╯─│" if self.is_unicode else "++++-|"
        edge = corners[4] * (len(title) + 2)
        side = self.paint(corners[5], "blue")
        self.line(self.paint(corners[0] + edge + corners[1], "blue"))
        self.line(f"{side} {self.paint(title, 'bold')} {side}")
        self.line(self.paint(corners[2] + edge + corners[3], "blue"))

    def heading(self, text: str) -> None:
        self.line(f"\n{self.paint(text, 'bold')}")

    def leaders(self, rows: Sequence[tuple[str, str]], style: str = "cyan") -> None:
        """Print names and their texts with dots between them, the texts aligned.

        If the terminal is narrower than a line, its text follows below the name.
        """
        width = min(max((len(name) for name, _ in rows), default=0), MAX_LEADER_COLUMNS) + 3
        for name, text in rows:
            dots = self.paint(self.dot * max(2, width - len(name)), "dim")
            beside = f"  {self.paint(name, style)} {dots} {text}".rstrip()
            if self.width is None or columns_of(beside.partition("\n")[0]) <= self.width:
                self.line(beside)
            else:
                self.line(f" {self.paint(name, style)}")
                self.line(f"   {text.lstrip()}")


def quote_text(text: str, max_chars: int | None = MAX_TEXT_CHARS) -> str:
    """Return text between back-quotes, clipped to `max_chars`."""
    if max_chars is None or len(text) <= max_chars:
        return f"`{escape_line(text)}`"
    return f"`{escape_line(text[:max_chars])}`... ({len(text) - max_chars} more)"


def format_number(value: Any, kind: str = "f64") -> str:
    """Return the shortest text that reads back as the same number; floats far from 1 have an exponent."""
    if not isinstance(value, float):
        return str(value)
    if not np.isfinite(value):
        return str(value)
    exact = np.float32(value) if "f32" in kind else np.float64(value)
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return np.format_float_positional(exact, trim="-")
    return np.format_float_scientific(exact, trim="-", exp_digits=1)


def format_value(value: Any, kind: str, length: int | None, full: bool) -> str:
    """Return a metadata value as one line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return quote_text(value, None if full else MAX_TEXT_CHARS)
    if isinstance(value, dict):
        return quote_text(json.dumps(value, ensure_ascii=False), None if full else MAX_TEXT_CHARS)
    if isinstance(value, list):
        items = [format_value(item, kind, len(item) if isinstance(item, list) else None, full) for item in value]
        num_hidden = 0 if length is None else length - len(items)
        if num_hidden:
            items.append(f"... ({num_hidden} more of {length})")
        return f"[{', '.join(items)}]"
    return format_number(value, kind)


def format_lines(text: str, full: bool) -> list[str]:
    """Return a text of several lines between two rules, clipped unless `full`."""
    lines = text.splitlines()
    kept = lines if full else lines[:MAX_TEXT_LINES]
    clipped = [line if full or len(line) <= MAX_TEXT_CHARS else line[:MAX_TEXT_CHARS] + "..." for line in kept]
    body = [escape_line(line) for line in clipped]
    if len(kept) < len(lines):
        body.append(f"... ({len(lines) - len(kept)} more lines; --full shows them)")
    return ["+--", *(f"| {line}".rstrip() for line in body), "+--"]


def count_text(value: int) -> str:
    """Return a rounded count, such as "134.5 M"."""
    for size, letter in UNITS:
        if value >= size:
            return f"{value / size:.1f} {letter}"
    return str(value)


def bytes_text(value: int) -> str:
    """Return a rounded size, such as "98.5 MB"."""
    return f"{count_text(value)}B" if value >= 1000 else f"{value} B"
