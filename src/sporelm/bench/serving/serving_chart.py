"""Charts of a measured server as SVG: throughput and times against users, or against the rate of requests.

Four small charts for each kind of load, each with a scale of its own from zero. Loads stand as far from each other as
their logarithms, since they are mostly doubled. The colours follow the reader's light or dark scheme.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log, log10
from xml.etree import ElementTree

from sporelm.bench.bench_chart import chart_style, draw_text, start_chart
from sporelm.bench.serving.serving_rows import LatencyStats, ServingRow

# Pixels: the chart, the drawing area of a panel, the first panel's left edge, and the distances between panels.
WIDTH = 860
TOP = 84
BOTTOM = 34
PANEL_WIDTH = 330
PANEL_HEIGHT = 150
LEFT = 66
ACROSS = 430
DOWN = 234
HEAD = 34  # above a panel's area
MIN_LABEL_GAP = 26  # between the numbers below the axis
MAX_TITLE_LENGTH = 100

LINES_LIGHT = """
.grid { stroke: #d1d9e0; stroke-width: 1; } .axis { stroke: #59636e; stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.speed { stroke: #1a7f5a; } .p50 { stroke: #2f6fb3; } .p90 { stroke: #8c6bb8; } .p99 { stroke: #c2557a; }
.dot-speed { fill: #1a7f5a; } .dot-p50 { fill: #2f6fb3; } .dot-p90 { fill: #8c6bb8; } .dot-p99 { fill: #c2557a; }
"""
LINES_DARK = """
.grid { stroke: #2a3038; } .axis { stroke: #9198a1; }
.speed { stroke: #3fb98a; } .p50 { stroke: #6ea8e6; } .p90 { stroke: #b393e0; } .p99 { stroke: #ee8fac; }
.dot-speed { fill: #3fb98a; } .dot-p50 { fill: #6ea8e6; } .dot-p90 { fill: #b393e0; } .dot-p99 { fill: #ee8fac; }
"""
PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True)
class ChartPanel:
    """A small chart: lines by their class in `LINES_LIGHT`, each with a value for every load, or None."""

    title: str
    lines: dict[str, list[float | None]]


def render_serving_chart(rows: Sequence[ServingRow], title: str, caption: str = "") -> str:
    """The charts: `title` on top, `caption` (machine, commit) at the foot."""
    kinds: list[tuple[str, Callable[[ServingRow], float], list[ServingRow]]] = [
        ("users at a time", lambda row: row.load.users, [row for row in rows if row.load.users]),
        ("requests a second", lambda row: row.load.rate or 0.0, [row for row in rows if row.load.rate]),
    ]
    kinds = [(name, value, sorted(found, key=value)) for name, value, found in kinds if found]
    height = TOP + BOTTOM + 2 * DOWN * len(kinds)
    root = start_chart(WIDTH, height, title, MAX_TITLE_LENGTH, chart_style(LINES_LIGHT, LINES_DARK))
    draw_serving_legend(root)
    for block, (name, value, found) in enumerate(kinds):
        places = logarithmic_positions([value(row) for row in found])
        labels = [f"{value(row):g}" for row in found]
        for index, panel in enumerate(build_panels(found)):
            x = LEFT + ACROSS * (index % 2)
            y = TOP + DOWN * (2 * block + index // 2) + HEAD
            draw_panel(root, x, y, panel, places, labels, name)
    draw_text(root, 16, height - 12, caption, "faint")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def build_panels(rows: Sequence[ServingRow]) -> list[ChartPanel]:
    """Build the panels for the loads of one kind."""
    times = (
        ("time to the first token, ms", [row.ttft for row in rows]),
        ("between two tokens, ms", [row.itl for row in rows]),
        ("whole answer, ms", [row.e2e for row in rows]),
    )
    return [
        ChartPanel("output tokens a second", {"speed": [row.tok_s for row in rows]}),
        *(
            ChartPanel(name, {line: select_percentile(spreads, line) for line in PERCENTILES})
            for name, spreads in times
        ),
    ]


def select_percentile(spreads: Sequence[LatencyStats | None], name: str) -> list[float | None]:
    """One percentile of each load."""
    return [getattr(spread, name) if spread is not None else None for spread in spreads]


def logarithmic_positions(values: Sequence[float]) -> list[float]:
    """Pixels from a panel's left, by the logarithms of values that grow."""
    low = log(values[0])
    high = log(values[-1])
    if high <= low:
        return [PANEL_WIDTH / 2 for _ in values]
    inner = PANEL_WIDTH - 40
    return [20 + inner * (log(value) - low) / (high - low) for value in values]


def draw_panel(
    root: ElementTree.Element,
    x: float,
    y: float,
    panel: ChartPanel,
    places: Sequence[float],
    labels: Sequence[str],
    kind: str,
) -> None:
    """A panel; `x`, `y` is the upper left corner of its area."""
    step, top = choose_axis([value for line in panel.lines.values() for value in line if value is not None])
    draw_text(root, x, y - 12, panel.title)
    count = round(top / step)
    for number in range(count + 1):
        level = y + PANEL_HEIGHT * (1 - number / count)
        place = {"x1": f"{x:g}", "x2": f"{x + PANEL_WIDTH:g}", "y1": f"{level:.1f}", "y2": f"{level:.1f}"}
        ElementTree.SubElement(root, "line", {"class": "grid" if number else "axis", **place})
        draw_text(root, x - 8, level + 4, f"{number * step:g}", "faint", anchor="end")
    last = -float(MIN_LABEL_GAP)
    for at, label in zip(places, labels, strict=True):
        if at - last >= MIN_LABEL_GAP:
            draw_text(root, x + at, y + PANEL_HEIGHT + 18, label, "faint", anchor="middle")
            last = at
    draw_text(root, x + PANEL_WIDTH, y + PANEL_HEIGHT + 34, kind, "faint", anchor="end")
    for name, values in panel.lines.items():
        points = [
            (x + at, y + PANEL_HEIGHT * (1 - value / top))
            for at, value in zip(places, values, strict=True)
            if value is not None
        ]
        if len(points) > 1:
            words = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
            ElementTree.SubElement(root, "polyline", {"class": f"line {name}", "points": words})
        for across, down in points:
            place = {"cx": f"{across:.1f}", "cy": f"{down:.1f}", "r": "3.5"}
            ElementTree.SubElement(root, "circle", {"class": f"dot-{name}", **place})


def choose_axis(values: Sequence[float]) -> tuple[float, float]:
    """The distance of a panel's lines and its top: 1, 2 or 5 times a power of ten, three to six lines."""
    largest = max([*values, 0.0]) or 1.0
    power = 10.0 ** (ceil(log10(largest)) - 2)
    step = next(power * factor for factor in (1, 2, 5, 10, 20, 50) if largest / (power * factor) <= 5)
    return step, step * ceil(largest / step)


def draw_serving_legend(root: ElementTree.Element) -> None:
    """Draw the meaning of the colours."""
    x = 16.0
    for name, words in (("speed", "throughput"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
        ElementTree.SubElement(root, "circle", {"class": f"dot-{name}", "cx": f"{x + 5:g}", "cy": "48", "r": "5"})
        draw_text(root, x + 16, 52, words, "faint")
        x += 36 + 7 * len(words)
    draw_text(root, x + 8, 52, "a scale per chart, from zero; loads at the distance of their logarithms", "faint")
