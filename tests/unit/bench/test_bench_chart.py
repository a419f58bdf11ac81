"""The chart: well-formed, with every number in it, bars as long as their figures say."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from sporelm.bench.bench_chart import check_plot, render_chart, write_svg
from sporelm.bench.bench_rows import BenchRow, PeerFigure, SpeedLimit
from sporelm.errors import RequestError

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    BenchRow(
        "pp512",
        1,
        0,
        (4000.0, 4100.0, 4200.0),
        SpeedLimit("compute", 8200.0),
        (PeerFigure("llama.cpp fa=on", (400.0, 410.0, 420.0)),),
    ),
    BenchRow("tg64", 8, 128, (100.0,)),
]


def parsed(rows: list[BenchRow], title: str = "model", caption: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(render_chart(rows, title, caption))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_numbers_are_in_the_chart() -> None:
    found = texts(parsed(ROWS, "tiny & <co>", "a machine; abc"))
    assert found[0] == "tiny & <co>"
    assert found[-1] == "a machine; abc"
    for expected in ("pp512", "4100.0", "410.0 (ours is 10.00 x)", "8200.0 compute (reached 50%)"):
        assert expected in found
    assert {"tg64 × 8 at 128", "100.0"} <= set(found)


def test_bars_are_as_long_as_their_figures() -> None:
    bars = [
        (element.get("class"), float(element.get("width", "nan")))
        for element in parsed(ROWS).iter(f"{SVG}rect")
        if element.get("rx")
    ]
    full = bars[2][1]
    assert [kind for kind, _ in bars] == ["ours", "peer", "limit", "ours"]
    assert [width / full for _, width in bars] == pytest.approx([0.5, 0.05, 1, 1], abs=0.001)
    assert len(list(parsed(ROWS).iter(f"{SVG}path"))) == 1, "one sample has no spread"


def test_the_longest_sample_stays_in_the_chart() -> None:
    (path,) = parsed([BenchRow("tg1", 1, 0, (1.0, 1.0, 9.0))]).iter(f"{SVG}path")
    end = float(path.get("d", "").partition("H")[2].partition("m")[0])
    assert end == pytest.approx(520)


def test_light_and_dark() -> None:
    style = parsed(ROWS).find(f"{SVG}style")
    assert style is not None
    light, _, dark = (style.text or "").partition("@media (prefers-color-scheme: dark)")
    for name in ("text", ".faint", ".back", ".ours", ".peer", ".limit", ".range"):
        assert f"{name} {{" in light
        assert f"{name} {{" in dark, f"{name} keeps its light colour in the dark"


def test_legend_names_what_is_there() -> None:
    assert "llama.cpp" not in texts(parsed(ROWS[1:]))
    assert "llama.cpp" in texts(parsed(ROWS))


def test_odd_titles_stay_well_formed() -> None:
    found = texts(parsed(ROWS[1:], "\x00\x1b[31m" + "long" * 100))
    assert found[0].startswith("??[31mlong")
    assert len(found[0]) <= 90


def test_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    path.write_text("old")
    write_svg(path, render_chart(ROWS, "µ"))
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.svg"]
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(RequestError, match=r"taken\.svg"):
        write_svg(tmp_path / "taken.svg", "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.svg", "taken.svg"]


@pytest.mark.parametrize(("name", "message"), [("out.png", "SVG"), ("no/out.svg", "does not exist")])
def test_places_that_cannot_be(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_plot(tmp_path / name)


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_plot(tmp_path / "out.svg")
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(RequestError, match="no file can be written there"):
        check_plot(tmp_path / "taken.svg")
    monkeypatch.setattr(
        "os.access", lambda place, mode: False
    )  # the user of the tests may be allowed to write anywhere
    with pytest.raises(RequestError, match="no file can be written there"):
        check_plot(tmp_path / "out.svg")


def test_each_peer_has_a_bar_and_a_name_in_the_legend() -> None:
    peers = (PeerFigure("llama.cpp fa=on", (50.0,)), PeerFigure("ik_llama.cpp fa=off rtr=on", (80.0,)))
    root = parsed([BenchRow("tg64", 1, 0, (100.0,), peers=peers)])
    bars = [element.get("class") for element in root.iter(f"{SVG}rect") if element.get("rx")]
    assert bars == ["ours", "peer", "second-peer"]
    found = texts(root)
    assert {"llama.cpp", "ik_llama.cpp", "50.0 (ours is 2.00 x)", "80.0 (ours is 1.25 x)"} <= set(found)
    assert "limit of this machine" not in found
