"""Damaged files through every tool that looks at files: an exit code and one line, never anything else."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_samples import sample
from sporelm.cli.main import main

TOOLS = (
    ["show", "FILE"],
    ["show", "FILE", "--full", "--json"],
    ["show-data", "FILE", "*", "--rows", ":"],
    ["verify", "FILE", "--hashes", "--json"],
    ["verify", "FILE"],
    ["diff", "FILE", "SOUND", "--distance"],
)
changes = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["set", "cut", "insert", "end"]), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=6,
)
Changes = list[tuple[float, str, bytes]]


def damaged(data: bytes, made: Changes) -> bytes:
    """A file with bytes overwritten, left out, put in, or with its end cut off. Most of it lies in the header."""
    for place, how, raw in made:
        at = int(place * (min(len(data), 1400) - 1)) if data else 0
        if how == "set":
            data = data[:at] + raw + data[at + len(raw) :]
        elif how == "insert":
            data = data[:at] + raw + data[at:]
        elif how == "cut":
            data = data[:at] + data[at + len(raw) :]
        else:
            data = data[: max(1, int(place * len(data)))]
    return data


def check(folder: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Run every tool on these bytes."""
    path = folder / "x.gguf"
    path.write_bytes(data)
    for words in TOOLS:
        named = [str({"FILE": path, "SOUND": folder / "sound.gguf"}.get(word, word)) for word in words]
        code = main(["gguf", *named])
        out, err = capsys.readouterr()
        assert code in (0, 1), (words, err)
        assert "unexpected" not in err, (words, err)
        assert all(line.startswith("spore: ") for line in err.splitlines()), (words, err)
        assert "\x1b" not in out + err


@pytest.mark.parametrize("order", ["little", "big"])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=changes)
def test_damaged_files(order: str, made: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = sample(tmp_path / "sound.gguf", byte_order=order)
    check(tmp_path, damaged(sound.read_bytes(), made), capsys)


@pytest.mark.all
@pytest.mark.parametrize("order", ["little", "big"])
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=changes)
def test_many_damaged_files(order: str, made: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = sample(tmp_path / "sound.gguf", byte_order=order)
    check(tmp_path, damaged(sound.read_bytes(), made), capsys)
