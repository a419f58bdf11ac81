"""The driver of the server's soak works, for some seconds; `serve.py` is for ten minutes."""

from pathlib import Path
from random import Random

import pytest

from soak.run import story
from soak.serve import run
from soak.serve_load import ACTS, ServerLoad


@pytest.mark.all
def test_some_seconds_of_everything_that_clients_do(shared: Path, tmp_path: Path) -> None:
    model = story(tmp_path / "story")
    found = run(model, 8.0, 40, 1, tmp_path, context=256, threads=1)
    assert found["faults"] == []
    assert sum(found["acts"].values()) > 40
    assert set(found["acts"]) <= set(ACTS)
    assert found["streams_compared"] > 0


def test_what_may_not_be_is_a_fault() -> None:
    load = ServerLoad(0, Random(1), 256)
    for status, body in ((200, b""), (429, b""), (503, b""), (400, b"the vocabulary has no token"), (500, b"?")):
        load.note(status, (200,), "what was asked", body)
    assert load.faults == ["what was asked was answered with 500: b'?'"]
    assert load.statuses.total() == 5
    assert all(1 <= len(load.text().split()) <= 86 for _ in range(100))
