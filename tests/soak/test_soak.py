"""A short run of the engine's soak; `run.py` runs for half an hour."""

import asyncio
from pathlib import Path

import pytest

from soak.load import ACTS
from soak.run import Sample, report, soak, story


@pytest.fixture
def model(shared: Path, tmp_path: Path) -> Path:
    return story(tmp_path / "story")


@pytest.mark.parametrize("speculate", [None, pytest.param("ngram", marks=pytest.mark.all)])
def test_a_short_soak_finds_no_faults(model: Path, tmp_path: Path, speculate: str | None) -> None:
    found = asyncio.run(soak(model, 2.0, 8, 1, tmp_path, threads=1, max_context=256, max_batch=4, speculate=speculate))
    assert [fault for fault in found["faults"] if "grew" not in fault] == []  # two seconds are all warm-up
    assert sum(found["acts"].values()) > 5
    assert set(found["acts"]) <= set(ACTS)
    assert not list(tmp_path.glob("*.session"))


def test_growth_is_reported() -> None:
    from soak.load import Load

    load = Load.__new__(Load)
    load.acts, load.refused, load.checked, load.faults = {}, 0, [], ["stuck"]
    samples = [Sample(1000 + number, 5, 9) for number in range(100)]
    assert report(load, samples)["faults"] == ["stuck", "rss grew 1.0792-fold"]
    assert report(load, [Sample(number * 1_000_000, 1, 1) for number in range(12)])["rss_mb"] == [
        0.5, 2.5, 4.5, 6.5, 8.5, 10.5,
    ]  # fmt: skip
    assert report(load, samples[:20])["faults"] == ["stuck"]
    assert report(load, [Sample(0, 3, 0), Sample(0, 4, 0)])["faults"] == ["stuck", "threads grew 1.3333-fold"]
