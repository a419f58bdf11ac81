"""Tables of a simulation's figures, as text for a terminal and for a page."""

from collections.abc import Mapping, Sequence
from typing import Any


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as a Markdown table."""
    if not rows:
        return ""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([format_cell(row.get(head)) for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_cell(value: Any) -> str:
    """Return a value with three significant digits, thousands separated."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if value != value:
        return "-"
    if abs(value) == float("inf"):
        return "unbounded"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_percent(value: float) -> str:
    """Return a share as percent, with its sign."""
    return f"{value:+.0%}"
