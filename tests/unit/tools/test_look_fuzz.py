"""Damaged files through every tool that looks at files: an exit code and one line, never anything else."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from gguf_samples import sample, values_of
from sporelm.cli.main import main

TOOLS = (
    ["show", "FILE"],
    ["show", "FILE", "--full", "--json"],
    ["show-data", "FILE", "*", "--rows", ":"],
    ["verify", "FILE", "--hashes", "--json"],
    ["verify", "FILE"],
    ["diff", "FILE", "SOUND", "--distance"],
)
KINDS = ("little", "big", "safetensors")
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


def sound_file(folder: Path, kind: str) -> Path:
    """A file of this kind without a fault."""
    if kind == "safetensors":
        path = folder / "sound.safetensors"
        save_file({"a.weight": values_of((4, 8)), "b": values_of((3,)).astype("int16")}, path, {"format": "pt"})
        return path
    return sample(folder / "sound.gguf", byte_order=kind)


def check(folder: Path, kind: str, made: Changes, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage a sound file and run every tool on it."""
    sound = sound_file(folder, kind)
    path = sound.with_stem("damaged")
    path.write_bytes(damaged(sound.read_bytes(), made))
    for words in TOOLS:
        named = [str({"FILE": path, "SOUND": sound}.get(word, word)) for word in words]
        code = main(["gguf", *named])
        out, err = capsys.readouterr()
        assert code in (0, 1), (words, err)
        assert "spore: unexpected " not in err, (words, err)
        assert all(line.startswith("spore: ") for line in err.splitlines()), (words, err)
        assert "\x1b" not in out + err


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=changes)
def test_damaged_files(kind: str, made: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(tmp_path, kind, made, capsys)


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=changes)
def test_many_damaged_files(kind: str, made: Changes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(tmp_path, kind, made, capsys)
