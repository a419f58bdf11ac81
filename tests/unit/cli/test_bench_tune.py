"""`spore bench tune`: bad targets, formats and files are found before anything is measured."""

from pathlib import Path
from typing import Any

import pytest

from sporelm import settings
from sporelm.backends.cpu.tuning import tile_tuning
from sporelm.cli import bench_tune
from sporelm.errors import RequestError


def run(*arguments: str) -> None:
    bench_tune.run(bench_tune.make_parser().parse_args(list(arguments)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of measured settings."""
    found = tmp_path / "tiles.json"
    monkeypatch.delenv("SPORE_CPU_TILES", raising=False)
    monkeypatch.setattr(settings, "CPU_TILES", settings.Setting("SPORE_CPU_TILES", lambda: str(found), ""))
    return found


def fail(*arguments: Any, **options: Any) -> None:
    pytest.fail("nothing is measured")


def test_a_folder_in_the_files_place_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_tuning, "tune_tiles", fail)
    path.mkdir()
    with pytest.raises(RequestError, match=r"SPORE_CPU_TILES: cannot be written .*not a regular file"):
        run("--quick")


def test_an_unknown_target_is_an_error_of_the_option(path: Path) -> None:
    with pytest.raises(RequestError, match=r"--target: not supported on this CPU \(got 'foo'; allowed .*generic"):
        run("--target", "foo")


def test_formats_may_have_spaces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def tune(target: Any, formats: Any, *rest: Any, **options: Any) -> None:
        given.append(formats)
        raise KeyboardInterrupt

    monkeypatch.setattr(tile_tuning, "tune_tiles", tune)
    with pytest.raises(KeyboardInterrupt):
        run("--format", "Q4_0, Q8_0")
    assert given == [["Q4_0", "Q8_0"]]


def test_an_interrupt_says_that_nothing_was_saved(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tile_tuning, "tune_tiles", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert "interrupted: nothing was saved" in capsys.readouterr().err
    assert not path.exists()
