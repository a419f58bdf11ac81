"""How the model-file tools print: boxes, dotted leaders, colours, and text out of files made harmless."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.cli.plain_text import has_colors
from sporelm.cli.plain_text import plain as plain
from sporelm.cli.terminal_layout import columns_of, fold, terminal_width

ESCAPES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
LONGEST_LEADER = 56
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SHORT_TEXT, SHORT_LINES = 100, 6


class Page:
    """Prints to stdout, with colours and line-drawing signs where the terminal has them."""

    def __init__(self, color: str = "auto") -> None:
        """`color` is "auto" (on a terminal), "always" or "never"."""
        self.colored = color == "always" or (color == "auto" and has_colors(sys.stdout))
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
        self.drawn = encoding.startswith("utf")
        self.dot = "·" if self.drawn else "."
        self.width = terminal_width()

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{ESCAPES[style]}m{text}\x1b[0m" if self.colored else text

    def line(self, text: str = "") -> None:
        """Print lines, each folded where the terminal is narrower."""
        for line in text.split("\n"):
            print("\n".join(fold(line, self.width)))

    def box(self, title: str) -> None:
        """A title in a box; alone where the terminal is narrower than the box."""
        if self.width is not None and columns_of(title) + 4 > self.width:
            self.line(self.paint(title, "bold"))
            return
        corners = "╭╮╰╯─│" if self.drawn else "++++-|"
        edge = corners[4] * (len(title) + 2)
        side = self.paint(corners[5], "blue")
        self.line(self.paint(corners[0] + edge + corners[1], "blue"))
        self.line(f"{side} {self.paint(title, 'bold')} {side}")
        self.line(self.paint(corners[2] + edge + corners[3], "blue"))

    def heading(self, text: str) -> None:
        self.line(f"\n{self.paint(text, 'bold')}")

    def leaders(self, rows: Sequence[tuple[str, str]], style: str = "cyan") -> None:
        """Names and what belongs to them, dots between, the second column aligned.

        On a terminal that is narrower than one of these lines, what belongs to a name follows below it.
        """
        width = min(max((len(name) for name, _ in rows), default=0), LONGEST_LEADER) + 3
        for name, text in rows:
            dots = self.paint(self.dot * max(2, width - len(name)), "dim")
            beside = f"  {self.paint(name, style)} {dots} {text}".rstrip()
            if self.width is None or columns_of(beside.partition("\n")[0]) <= self.width:
                self.line(beside)
            else:
                self.line(f" {self.paint(name, style)}")
                self.line(f"   {text.lstrip()}")


def quoted(text: str, most: int | None = SHORT_TEXT) -> str:
    """Text between back-quotes, clipped to `most` signs."""
    if most is None or len(text) <= most:
        return f"`{plain(text)}`"
    return f"`{plain(text[:most])}`... ({len(text) - most} more)"


def number(value: Any, kind: str = "f64") -> str:
    """A number as short as it can be without another reading; floats far from 1 with an exponent."""
    if not isinstance(value, float):
        return str(value)
    if not np.isfinite(value):
        return str(value)
    exact = np.float32(value) if "f32" in kind else np.float64(value)
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return np.format_float_positional(exact, trim="-")
    return np.format_float_scientific(exact, trim="-", exp_digits=1)


def shown_value(value: Any, kind: str, length: int | None, full: bool) -> str:
    """A metadata value on one line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return quoted(value, None if full else SHORT_TEXT)
    if isinstance(value, dict):
        return quoted(json.dumps(value, ensure_ascii=False), None if full else SHORT_TEXT)
    if isinstance(value, list):
        items = [shown_value(item, kind, len(item) if isinstance(item, list) else None, full) for item in value]
        left = 0 if length is None else length - len(items)
        if left:
            items.append(f"... ({left} more of {length})")
        return f"[{', '.join(items)}]"
    return number(value, kind)


def text_lines(text: str, full: bool) -> list[str]:
    """A text of several lines between two rules, clipped unless `full`."""
    lines = text.splitlines()
    kept = lines if full else lines[:SHORT_LINES]
    cut = [plain(line if full or len(line) <= SHORT_TEXT else line[:SHORT_TEXT] + "...") for line in kept]
    left = [f"... ({len(lines) - len(kept)} more lines; --full shows them)"] if len(kept) < len(lines) else []
    return ["+--", *(f"| {line}".rstrip() for line in [*cut, *left]), "+--"]


def count_text(value: int) -> str:
    """A count for people: "134.5 M"."""
    for size, letter in UNITS:
        if value >= size:
            return f"{value / size:.1f} {letter}"
    return str(value)


def bytes_text(value: int) -> str:
    """Bytes for people: "98.5 MB"."""
    return f"{count_text(value)}B" if value >= 1000 else f"{value} B"
