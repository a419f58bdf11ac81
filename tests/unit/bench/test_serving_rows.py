"""Percentiles, rows and their charts."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.bench.serving.load_generator import LoadRun, OfferedLoad, RequestOutcome
from sporelm.bench.serving.serving_chart import choose_axis, logarithmic_positions, render_serving_chart
from sporelm.bench.serving.serving_rows import SERVING_COLUMNS, LatencyStats, ServingRow, format_three_digits

SVG = "{http://www.w3.org/2000/svg}"


def answer(began: float, ttft: float, gap: float, tokens: int = 3) -> RequestOutcome:
    ended = began + ttft + gap * (tokens - 1)
    return RequestOutcome(
        began, ended, ttft=ttft, inter_token_seconds=(gap,) * (tokens - 1), tokens=tokens, counted=True, prompt_tokens=5
    )


def row(load: OfferedLoad, *runs: list[RequestOutcome]) -> ServingRow:
    return ServingRow(load, tuple(LoadRun(outcomes, cpu=0.1, wall=2.0) for outcomes in runs))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy(seconds: list[float]) -> None:
    found = LatencyStats.of(seconds)
    assert found is not None
    expected = [*np.percentile(np.array(seconds) * 1e3, [50, 90, 99]), np.mean(seconds) * 1e3]
    assert [found.p50, found.p90, found.p99, found.mean] == pytest.approx(expected, abs=1e-6)


def test_nothing_has_no_percentiles() -> None:
    assert LatencyStats.of([]) is None


def test_figures_of_a_row() -> None:
    failed = RequestOutcome(0.0, 4.0, "HTTP 429", "later")
    made = row(
        OfferedLoad(users=2), [answer(0.0, 0.5, 0.1), answer(1.0, 0.7, 0.2), failed], [answer(10.0, 0.6, 0.1, 9)]
    )
    assert made.samples == pytest.approx((6 / 4.0, 9 / 1.4)), "failed requests take time and give no tokens"
    assert made.tok_s == pytest.approx((6 / 4.0 + 9 / 1.4) / 2)
    assert made.requests_s == pytest.approx((2 / 4.0 + 1 / 1.4) / 2)
    assert made.ttft is not None
    assert made.ttft.p50 == pytest.approx(600)
    assert made.itl is not None
    assert made.itl.mean == pytest.approx(1e3 * (0.2 + 0.4 + 0.8) / 12)
    assert made.tpot is not None
    assert made.tpot.mean == pytest.approx(1e3 * (0.1 + 0.2 + 0.1) / 3)
    assert made.e2e is not None
    assert made.e2e.p50 == pytest.approx(1100)
    assert made.errors == {"HTTP 429": 1}
    assert made.cpu_client == pytest.approx(0.05)
    found = made.as_json()
    assert (found["requests"], found["answers"], found["output_tokens"], found["prompt_tokens"]) == (4, 3, 15, 15)
    assert found["said"] == {"HTTP 429": "later"}
    assert found["cached_tokens"] is None
    assert len(made.cells()) == len(SERVING_COLUMNS)


def test_who_counted() -> None:
    pieces = RequestOutcome(0.0, 1.0, ttft=0.5, tokens=2)
    assert row(OfferedLoad(users=1), [answer(0, 1, 1)]).counted_by == "usage"
    assert row(OfferedLoad(users=1), [pieces]).counted_by == "pieces"
    assert row(OfferedLoad(users=1), [pieces, answer(0, 1, 1)]).counted_by == "usage and pieces"


@pytest.mark.parametrize(("value", "text"), [(0.1234, "0.12"), (9.876, "9.88"), (12.34, "12.3"), (1234.5, "1234")])
def test_rounded(value: float, text: str) -> None:
    assert format_three_digits(value) == text


ROWS = [
    row(OfferedLoad(users=16), [answer(0.0, 2.0, 0.2)]),
    row(OfferedLoad(users=1), [answer(0.0, 0.5, 0.1)]),
    row(OfferedLoad(users=4), [answer(0.0, 1.0, 0.1)]),
    row(OfferedLoad(rate=2.5), [answer(0.0, 0.5, 0.1)]),
    row(OfferedLoad(rate=5.0), [RequestOutcome(0.0, 1.0, "HTTP 429")]),
]


def test_charts_hold_every_load() -> None:
    root = ElementTree.fromstring(render_serving_chart(ROWS, "tiny & <co>", "a machine\x00; abc"))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert texts[0] == "tiny & <co>"
    assert texts[-1] == "a machine?; abc"
    assert texts.count("users at a time") == texts.count("requests a second") == 4
    assert {"1", "4", "16", "2.5"} <= set(texts)
    dots = [element for element in root.iter(f"{SVG}circle") if element.get("r") == "3.5"]
    assert len(dots) == 3 * (1 + 9) + (2 + 9), "a load where all failed has a throughput, and no times"
    lines = list(root.iter(f"{SVG}polyline"))
    assert len(lines) == 10 + 1
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for dot in dots:
        assert 0 < float(dot.get("cx", "nan")) < width
        assert 0 < float(dot.get("cy", "nan")) < height


def test_lines_go_up_where_values_do() -> None:
    root = ElementTree.fromstring(render_serving_chart(ROWS[:3], "t"))
    line = next(each for each in root.iter(f"{SVG}polyline") if each.get("class") == "line p50")
    places = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    assert places == sorted(places)
    assert [down for _, down in places] == sorted((down for _, down in places), reverse=True)
    # 500, 1000 and 2000 ms of 2000, and 1, 4, 16 users at even distances
    assert (places[0][1] - places[2][1]) / (places[1][1] - places[2][1]) == pytest.approx(1.5, abs=0.01)
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0], abs=0.2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], (2.0, 8.0)),
        ([100.0], (20.0, 100.0)),
        ([0.03, 0.012], (0.01, 0.03)),
        ([0.0], (0.2, 1.0)),
    ],
)
def test_scales(values: list[float], expected: tuple[float, float]) -> None:
    assert choose_axis(values) == pytest.approx(expected)


def test_one_load_stands_in_the_middle() -> None:
    (place,) = logarithmic_positions([8.0])
    assert place == pytest.approx(165)


def test_colours_of_both_schemes() -> None:
    light, _, dark = render_serving_chart(ROWS, "t").partition("@media (prefers-color-scheme: dark)")
    for name in (".speed", ".p50", ".p90", ".p99", ".dot-speed", ".dot-p50", ".dot-p90", ".dot-p99", ".grid", ".axis"):
        assert f"{name} {{" in light
        assert f"{name} {{" in dark
