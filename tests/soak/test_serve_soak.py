"""A short run of the server's soak; `serve.py` runs for ten minutes."""

from pathlib import Path
from random import Random

import pytest

from soak.run import story
from soak.serve import run
from soak.serve_load import ACTS, ServerLoad


@pytest.mark.all
def test_a_short_soak_finds_no_faults(shared: Path, tmp_path: Path) -> None:
    model = story(tmp_path / "story")
    found = run(model, 8.0, 40, 1, tmp_path, context=256, threads=1)
    assert found["faults"] == []
    assert sum(found["acts"].values()) > 40
    assert set(found["acts"]) <= set(ACTS)
    assert found["streams_compared"] > 0


def test_an_unexpected_status_is_a_fault() -> None:
    load = ServerLoad(0, Random(1), 256)
    for status, body in ((200, b""), (429, b""), (503, b""), (400, b"the vocabulary has no token"), (500, b"?")):
        load.note(status, (200,), "a request", body)
    assert load.faults == ["a request was answered with 500: b'?'"]
    assert load.statuses.total() == 5
    assert all(1 <= len(load.text().split()) <= 86 for _ in range(100))
