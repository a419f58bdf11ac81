"""A chart of rows as SVG: our bar, those of the peers and the machine's limit, with the numbers beside them.

Each row has a scale of its own, from zero to the largest of its figures: a prompt and a single token differ a
hundredfold, and what is compared stands within one row. The colours follow the reader's light or dark scheme.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from sporelm.bench.bench_rows import BenchRow, compute_median_ratio
from sporelm.errors import RequestError
from sporelm.files.atomic_write import Job, write_beside

# Pixels: bars lie between, labels on the left, numbers on the right.
WIDTH = 760
LEFT = 150
RIGHT = 240
BAR = 16
GAP = 3
BETWEEN = 18
TOP = 74
BOTTOM = 30
MAX_TITLE_LENGTH = 90

# Common styles. No CSS variables: not every SVG viewer supports them.
LIGHT = """
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.faint { font-size: 12px; fill: #59636e; }
.back { fill: #ffffff; }
"""
DARK = "text { fill: #f0f6fc; } .faint { fill: #9198a1; } .back { fill: #0d1117; }\n"
BARS_LIGHT = """
.ours { fill: #1a7f5a; } .peer { fill: #8c6bb8; } .second-peer { fill: #c98a2b; } .limit { fill: #afb8c1; }
.range { fill: none; stroke: #1f2328; stroke-width: 1.5; }
"""
BARS_DARK = """
.ours { fill: #3fb98a; } .peer { fill: #b393e0; } .second-peer { fill: #e0b060; } .limit { fill: #4a535e; }
.range { stroke: #f0f6fc; }
"""


def chart_style(light: str, dark: str) -> str:
    """A chart's style: what every chart has, and rules of its own for light and for dark schemes."""
    return LIGHT + light.lstrip() + f"@media (prefers-color-scheme: dark) {{\n{DARK}{dark.lstrip()}}}\n"


class ChartBar(NamedTuple):
    """One bar: its class in `BARS_LIGHT`, tokens per second, and what stands beside it."""

    kind: str
    value: float
    label: str


def check_plot(path: Path) -> None:
    """Raise RequestError if the chart cannot go there: known before anything is measured."""
    if path.suffix.lower() != ".svg":
        raise RequestError(f"--plot {path.name!r}: charts are SVG, give a name that ends in .svg")
    if not path.resolve().parent.is_dir():
        raise RequestError(f"--plot {path.name!r}: the folder {str(path.resolve().parent)!r} does not exist; create it")
    if path.is_dir() or not os.access(path.resolve().parent, os.W_OK):
        raise RequestError(f"--plot {path.name!r}: no file can be written there; give another name or folder")


def start_chart(width: int, height: int, title: str, max_title_length: int, css: str) -> ElementTree.Element:
    """Make an SVG root with style, background and title; a title above the maximum length is shortened."""
    root = ElementTree.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", width=str(width), height=str(height),
        viewBox=f"0 0 {width} {height}", role="img",
    )  # fmt: skip
    ElementTree.SubElement(root, "title").text = replace_unprintable(title)
    ElementTree.SubElement(root, "style").text = css
    ElementTree.SubElement(root, "rect", {"class": "back", "width": str(width), "height": str(height)})
    shown = title if len(title) <= max_title_length else title[: max_title_length - 3] + "..."
    draw_text(root, 16, 28, shown, "title")
    return root


def render_chart(rows: Sequence[BenchRow], title: str, caption: str = "") -> str:
    """Render the chart: `title` on top, `caption` (machine, commit) at the foot."""
    charted = [(row_label(row), build_bars(row), row) for row in rows]
    height = TOP + BOTTOM + sum(len(found) * (BAR + GAP) + BETWEEN for _, found, _ in charted)
    root = start_chart(WIDTH, height, title, MAX_TITLE_LENGTH, chart_style(BARS_LIGHT, BARS_DARK))
    draw_legend(root, name_kinds(rows))
    top = float(TOP)
    for label, found, row in charted:
        draw_text(root, LEFT - 10, top + len(found) * (BAR + GAP) / 2 + 3, label, "name", anchor="end")
        draw_bars(root, top, found, row)
        top += len(found) * (BAR + GAP) + BETWEEN
    draw_text(root, 16, height - 12, caption, "faint")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def row_label(row: BenchRow) -> str:
    """Return a short label of a row."""
    parts = [row.test]
    if row.batch > 1:
        parts.append(f"× {row.batch}")
    if row.depth:
        parts.append(f"at {row.depth}")
    return " ".join(parts)


def build_bars(row: BenchRow) -> list[ChartBar]:
    """Ours first, then the peers' and the limit, as far as they were measured."""
    found = [ChartBar("ours", row.tok_s, f"{row.tok_s:.1f}")]
    for index, peer in enumerate(row.peers):
        ratio = compute_median_ratio(row.samples, peer.samples)
        found.append(ChartBar(peer_kind(index), peer.tok_s, f"{peer.tok_s:.1f} (ours is {ratio:.2f} x)"))
    if row.limit and row.share is not None:
        reached = f"(reached {row.share:.0%})"
        found.append(ChartBar("limit", row.limit.value, f"{row.limit.value:.1f} {row.limit.kind} {reached}"))
    return found


def peer_kind(index: int) -> str:
    """The class in `BARS_LIGHT` of the bars of a row's peer: the second one and all that follow share one colour."""
    return "peer" if index == 0 else "second-peer"


def draw_bars(root: ElementTree.Element, top: float, found: Sequence[ChartBar], row: BenchRow) -> None:
    """The bars of a row, the spread of our samples over ours."""
    largest = max([bar.value for bar in found] + list(row.samples))
    pixels = (WIDTH - LEFT - RIGHT) / largest if largest > 0 else 0.0
    for index, bar in enumerate(found):
        y = top + index * (BAR + GAP)
        place = {"x": str(LEFT), "y": f"{y:.1f}", "width": f"{max(1.0, bar.value * pixels):.1f}", "height": str(BAR)}
        ElementTree.SubElement(root, "rect", {"class": bar.kind, "rx": "2", **place})
        draw_text(root, WIDTH - RIGHT + 10, y + BAR - 4, bar.label, "number")
    if len(row.samples) > 1:
        low = LEFT + min(row.samples) * pixels
        high = LEFT + max(row.samples) * pixels
        middle = top + BAR / 2
        line = f"M{low:.1f} {middle - 4:.1f}v8m0-4H{high:.1f}m0-4v8"
        ElementTree.SubElement(root, "path", {"class": "range", "d": line})


def name_kinds(rows: Sequence[BenchRow]) -> dict[str, str]:
    """The classes of the bars that the rows have, each with its name."""
    names = {"ours": "Sporelm"}
    for index, peer in ((index, peer) for row in rows for index, peer in enumerate(row.peers)):
        names.setdefault(peer_kind(index), peer.name.partition(" ")[0])
    if any(row.limit for row in rows):
        names["limit"] = "limit of this machine"
    return names


def draw_legend(root: ElementTree.Element, names: dict[str, str]) -> None:
    """Draw the meaning of the colours."""
    x = 16
    for kind, name in names.items():
        ElementTree.SubElement(root, "rect", {"class": kind, "x": str(x), "y": "42", "width": "11", "height": "11"})
        draw_text(root, x + 17, 52, name, "faint")
        x += 36 + 7 * len(name)
    draw_text(root, x + 8, 52, "tokens per second; a scale per row", "faint")


def draw_text(
    root: ElementTree.Element, x: float, y: float, content: str, kind: str = "", anchor: str = "start"
) -> None:
    """A line of text."""
    place = {"class": kind, "x": f"{x:g}", "y": f"{y:.1f}", "text-anchor": anchor}
    ElementTree.SubElement(root, "text", place).text = replace_unprintable(content)


def replace_unprintable(content: str) -> str:
    """The text with '?' for what XML cannot hold: names come from model files, which are hostile."""
    return "".join(letter if letter.isprintable() else "?" for letter in content)


def write_svg(path: Path, chart: str) -> None:
    """Write the chart atomically. Raises RequestError."""
    write_beside([Job(path, lambda file: file.write(chart.encode()))])
