"""`spore worker` says at once why it cannot join, and ends where waiting cannot help."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from sporelm.cli import worker
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.ranks.transport import RankListener, read_or_create_token
from sporelm.errors import SporeError, UsageError


@pytest.fixture
def listener() -> Iterator[RankListener]:
    found = RankListener(RankAddress.parse("127.0.0.1:0"), "t" * 40)
    yield found
    found.close()


def parse(listener: RankListener, folder: Path, *words: str) -> Namespace:
    token = folder / "token"
    read_or_create_token(token)
    return worker.make_parser().parse_args(["--join", str(listener.address), "--token-file", str(token), *words])


def test_a_refused_token_ends_the_worker_at_once(listener: RankListener, tmp_path: Path) -> None:
    began = monotonic()
    with pytest.raises(SporeError, match=r"refused this token\. Copy the token file"):
        worker.run(parse(listener, tmp_path))
    assert monotonic() - began < 5


def test_the_first_reason_is_shown_before_waiting(
    listener: RankListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listener.close()
    shown = []
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: shown.append(capsys.readouterr().err))
    with pytest.raises(SporeError, match="cannot connect"):
        worker.run(parse(listener, tmp_path, "--wait-seconds", "0.2"))
    assert "cannot connect" in shown[0]
    assert shown[1:] == [""] * (len(shown) - 1)  # once


def test_options_of_the_host_are_checked_first(listener: RankListener, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--threads"):
        worker.run(parse(listener, tmp_path, "--threads", "0"))
    with pytest.raises(UsageError, match="--device: needs --backend"):
        worker.run(parse(listener, tmp_path, "--device", "cuda:1"))
    with pytest.raises(SporeError, match="the option backend: unknown back-end"):
        worker.run(parse(listener, tmp_path, "--backend", "auto"))
