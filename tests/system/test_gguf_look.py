"""`spore gguf show | show-data | verify | diff` as a user runs them."""

import json
import subprocess
from pathlib import Path

import pytest

from gguf_samples import patch_entry, sample, splits, values_of
from sporelm.files.gguf import GgufWriter
from system.processes import SECONDS, Spore, command, environment, one_line

LOOKING = (["show"], ["show-data", "*"], ["verify"])

GOLDEN = """\
╭────────╮
│ a.gguf │
╰────────╯

Header
  format ············ GGUF version 3, little-endian
  size ·············· 480 B (480 bytes) in 1 file
  alignment ········· 32
  metadata ·········· 5
  tensors ··········· 2
  parameters ········ 22 (22)
  bits per weight ··· 32.000

Types
  F32 ···      2 tensors        22 values      88 B 100.0%

Metadata
  general.architecture ··· str: `sample`
  general.file_type ······ u32: 15 (Q4_K_M)
  sample.eps ············· f32: 1e-5
  sample.sizes ··········· [i32]: [1, 2, 3, 4, 5, 6, 7, 8, ... (1 more of 9)]
  sample.text ············ str:
      +--
      | one
      | \\x1b[2Jtwo
      +--

Tensors
  wide.weight ··· F32 +0x160 [6, 3]
  end.bias ······ F32 +0x1c0 [4]

"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file whose text tries to clear the screen."""
    writer = GgufWriter(tmp_path / "a.gguf")
    writer.add("general.architecture", "sample")
    writer.add("general.file_type", 15, "u32")
    writer.add("sample.eps", 1e-5, "f32")
    writer.add("sample.sizes", list(range(1, 10)))
    writer.add("sample.text", "one\n\x1b[2Jtwo\n")
    writer.add_tensor("wide.weight", values_of((3, 6)))
    writer.add_tensor("end.bias", values_of((4,)))
    writer.write()
    return tmp_path / "a.gguf"


def test_show_prints_this(spore: Spore, small: Path) -> None:
    done = spore("gguf", "show", small)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == GOLDEN


def test_show_without_signs_and_with_colours(spore: Spore, small: Path) -> None:
    plain = spore("gguf", "show", small, PYTHONIOENCODING="ascii").stdout
    assert plain.isascii()
    assert "+--------+\n| a.gguf |\n" in plain
    assert "\x1b[" not in plain
    colored = spore("gguf", "show", small, "--color", "always").stdout
    assert "\x1b[1ma.gguf\x1b[0m" in colored
    assert "\x1b[2J" not in colored


def test_show_filters(spore: Spore, small: Path) -> None:
    words = ("gguf", "show", small, "-m", "sample.s*", "-t", "end.*", "-n", "2")
    text = spore(*words).stdout
    assert "[1, 2, ... (7 more of 9)]" in text
    assert "Metadata (1 of 5)" in text
    assert "Tensors (1 of 2)" in text
    assert "wide.weight" not in text
    assert "Metadata" not in spore("gguf", "show", small, "--no-meta", "--no-tensors").stdout
    (found,) = json.loads(spore(*words, "--json").stdout)
    assert found["metadata"] == [{"key": "sample.sizes", "kind": "[i32]", "value": [1, 2], "length": 9}]
    assert found["parameters"] == 22
    assert "9]" in spore("gguf", "show", small, "--full").stdout


def test_show_data_prints_values_statistics_and_a_histogram(spore: Spore, small: Path) -> None:
    text = spore("gguf", "show-data", small, "wide.weight", "--rows", "1:", "--cols=-2:", "--bins", "3").stdout
    rows = values_of((3, 6))
    for row in (1, 2):
        assert f"{row}{rows[row, 4]:>12.4e}{rows[row, 5]:>12.4e}" in text
    assert f"minimum ········· {rows.min():.6g}" in text
    assert len(text.partition("Histogram\n")[2].strip().splitlines()) == 3
    (found,) = json.loads(spore("gguf", "show-data", small, "end.*", "--json", "--head", "2").stdout)
    assert found["values"] == [values_of((4,))[:2].tolist()]
    assert found["statistics"]["count"] == 4
    assert "statistics" not in json.loads(spore("gguf", "show-data", small, "*", "--no-stats", "--json").stdout)[1]


def test_show_data_of_unknown_names(spore: Spore, small: Path) -> None:
    done = spore("gguf", "show-data", small, "wide.wieght")
    assert done.returncode == 1
    assert "the nearest name is 'wide.weight'" in one_line(done.stderr)
    assert "no tensor matches 'x*'" in one_line(spore("gguf", "show-data", small, "x*").stderr)


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
def test_several_files_and_a_bad_one(spore: Spore, tmp_path: Path, words: list[str]) -> None:
    sample(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF\x03\0\0\0rubbish")
    sample(tmp_path / "c.gguf", byte_order="big")
    done = spore("gguf", words[0], "*.gguf", *words[1:])
    assert done.returncode == 1
    assert "a.gguf" in done.stdout
    assert "c.gguf" in done.stdout
    assert words[0] == "verify" or "b.gguf" in one_line(done.stderr)
    found = json.loads(spore("gguf", words[0], "*.gguf", *words[1:], "--json").stdout)
    assert {Path(entry["path"]).name for entry in found} >= {"a.gguf", "c.gguf"}


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
def test_splits_are_one_model(spore: Spore, tmp_path: Path, words: list[str]) -> None:
    splits(tmp_path)
    done = spore("gguf", words[0], "*.gguf", *words[1:], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {Path(entry["path"]).name for entry in found} == {"model-00001-of-00002.gguf"}


def test_verify(spore: Spore, small: Path) -> None:
    done = spore("gguf", "verify", small)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "a.gguf: ok (2 tensors)")
    hashes = spore("gguf", "verify", small, "--hashes").stdout
    small.with_name("list").write_text(hashes)
    assert hashes.count("sha256") == 3
    assert spore("gguf", "verify", small, "--check", "list").returncode == 0
    assert len(json.loads(spore("gguf", "verify", small, "--hashes", "--json").stdout)[0]["hashes"]) == 3
    patch_entry(small, "end.bias", offset=1)
    done = spore("gguf", "verify", small, "--check", "list")
    assert done.returncode == 1
    assert "error   place end.bias: offset 1 is not a multiple of 32" in done.stdout
    assert "damaged" in done.stdout


def test_verify_strict(spore: Spore, small: Path) -> None:
    small.write_bytes(small.read_bytes() + bytes(32))
    assert spore("gguf", "verify", small).returncode == 0
    assert spore("gguf", "verify", small, "--strict").returncode == 1


def test_diff(spore: Spore, small: Path, tmp_path: Path) -> None:
    other = sample(tmp_path / "b.gguf")
    same = spore("gguf", "diff", small, small)
    assert (same.returncode, same.stdout.splitlines()[-1]) == (0, "the same (2 tensors)")
    done = spore("gguf", "diff", small, other, "--distance")
    assert done.returncode == 1
    assert "  - wide.weight: F32 [6, 3]" in done.stdout
    assert "  + blk.0.ffn.weight: Q8_0 [64, 5]" in done.stdout
    found = json.loads(spore("gguf", "diff", small, other, "--json").stdout)
    assert (found["same"], len(found["tensors"])) == (False, 7)
    assert spore("gguf", "diff", small, other, "-m", "sample.eps", "--no-tensors").returncode == 0
    done = spore("gguf", "diff", "*.gguf", small)
    assert done.returncode == 1
    assert "stands for 2 models" in one_line(done.stderr)


@pytest.mark.parametrize("words", [*LOOKING, ["diff", "b.gguf"]], ids=lambda words: words[0])
def test_a_closed_pipe_is_not_a_failure(tmp_path: Path, words: list[str]) -> None:
    more = {f"x.key{i}": "text" * 30 for i in range(2000)}
    sample(tmp_path / "a.gguf", more=more)
    sample(tmp_path / "b.gguf")
    with subprocess.Popen(
        command("gguf", words[0], "a.gguf", *words[1:]), cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) in (0, 1)
