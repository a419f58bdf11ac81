"""`spore gguf quantize` and `spore gguf imatrix` as a user runs them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

import imatrix_models as models
from gguf_models import contents, write_model
from sporelm.cli.main import main
from sporelm.files.gguf import open_gguf
from sporelm.quant import F16, Q8_0
from sporelm.tools.imatrix_file import read_imatrix
from system.processes import command, environment, one_line


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model and a text, in the current folder."""
    (tmp_path / models.DATASET).write_text(models.TEXT, encoding="utf-8")
    return models.write(tmp_path / "m.gguf")


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main(["gguf", *map(str, words), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["gguf", *map(str, words)]) in (1, 2)  # which of them: test_usage.py
    return one_line(capsys.readouterr().err)


def test_from_text_to_a_quantized_file(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, matrix = tiny.with_name(models.DATASET), tiny.with_name("i.gguf")
    done = run_json(capsys, "imatrix", tiny, text, "-o", matrix, "--context", models.CONTEXT, "--threads", 1)
    assert (done["entries"], done["chunks"], done["complete"]) == (14, 5, True)
    assert read_imatrix(matrix).datasets == (str(text),)
    options = ("--imatrix", matrix, "--tensor", "blk.0.attn_v.weight=F16", "--threads", "1")
    done = run_json(capsys, "quantize", tiny, "--type", "q5_1", *options)
    out = tiny.with_name("m-Q5_1.gguf")
    assert [file["path"] for file in done["files"]] == [str(out)]
    assert done["files"][0]["bytes"] == out.stat().st_size
    assert done["models"][0]["types"] == {"Q5_1": 14, "F32": 5, "F16": 1, "Q8_0": 1}
    assert contents(out)["blk.0.attn_v.weight"][0] == "F16"
    assert "is there already" in refused(capsys, "quantize", tiny, "--type", "Q5_1")
    assert main(["gguf", "quantize", str(tiny), "--type", "Q5_1", "--force"]) == 0
    shown = capsys.readouterr().out
    assert "bits per weight" in shown
    assert "Q5_1" in shown


def test_going_on_and_merging(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, matrix = tiny.with_name(models.DATASET), tiny.with_name("i.gguf")
    given = ("imatrix", tiny, text, "-o", matrix, "--context", models.CONTEXT, "--threads", 1)
    assert run_json(capsys, *given, "--chunks", 2)["chunks"] == 2
    assert "is there already" in refused(capsys, *given)
    assert run_json(capsys, *given, "--resume")["chunks"] == 5
    whole, both = tiny.with_name("w.dat"), tiny.with_name("both.gguf")
    run_json(capsys, "imatrix", tiny, text, "-o", whole, "--context", models.CONTEXT, "--process-output")
    assert run_json(capsys, "imatrix", "--merge", matrix, whole, "-o", both)["chunks"] > 5
    assert read_imatrix(both).datasets == (str(text), str(text))
    assert "output.weight" in read_imatrix(both).entries


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are Unicode there")
@pytest.mark.skipif(os.fsdecode(b"\xff").isprintable(), reason="each byte is a character in this locale")
def test_names_that_are_not_unicode_are_escaped(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, matrix = (tiny.with_name(os.fsdecode(name)) for name in (b"t\xff.txt", b"i\xff.gguf"))
    text.write_text(models.TEXT, encoding="utf-8")
    run_json(capsys, "imatrix", tiny, text, "-o", matrix, "--context", models.CONTEXT, "--chunks", 1)
    assert read_imatrix(matrix).datasets[0].endswith("t\\udcff.txt")
    assert run_json(capsys, "imatrix", tiny, text, "-o", matrix, "--context", models.CONTEXT, "--resume")["chunks"] == 5
    out = tiny.with_name("out.gguf")
    run_json(capsys, "quantize", tiny, "--type", "Q8_0", "--imatrix", matrix, "-o", out)
    with open_gguf(out) as found:
        assert found.metadata["quantize.imatrix.file"].endswith("i\\udcff.gguf")


def test_several_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a-F16.gguf", "b.f16.gguf"):
        write_model(tmp_path / name, matrices=F16)
    (tmp_path / "out").mkdir()
    words = ("quantize", tmp_path / "*.gguf", "-t", "Q4_0", "-o", tmp_path / "out")
    done = run_json(capsys, *words, "--dry-run")
    assert done["written"] is False
    assert not list((tmp_path / "out").iterdir())
    run_json(capsys, *words)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a-Q4_0.gguf", "b.Q4_0.gguf"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["quantize", "{m}"], "--type is missing: one of F32"),
        (["quantize", "{m}", "--type", "Q4_K_X"], "--type: there is no 'Q4_K_X'; the nearest is Q4_K_"),
        (["quantize", "{m}", "--type", "Q4_0"], "--allow-requantize"),
        (["quantize", "{m}", "--type", "Q8_0", "--tensor", "x=Q8_0"], "no tensor that is quantized fits 'x'"),
        (["quantize", "{m}", "--type", "Q8_0", "--tensor", "x"], "PATTERN=TYPE"),
        (["quantize", "{m}", "--type", "Q8_0", "--imatrix", "{no}"], "does not exist"),
        (["quantize", "{m}", "--type", "Q8_0", "--imatrix", "{m}"], "is not an importance matrix"),
        (["quantize", "{m}", "--type", "Q8_0", "--threads", "0"], "--threads is 0"),
        (["quantize", "{m}", "--type", "Q8_0", "--threads", "99999"], "twice the usable cores"),
        (["quantize", "{m}", "--type", "Q8_0", "-o", "{no}/"], "there is no folder"),
        (["quantize", "{no}", "--type", "Q8_0"], "no model at"),
        (["quantize", "{m}", "{no}", "--type", "Q8_0"], "name the output with -o"),
        (["imatrix", "{m}", "-o", "{no}"], "give a MODEL and a TEXT, not 1 names"),
        (["imatrix", "{m}", "{m}"], "-o OUT is missing"),
        (["imatrix", "{m}", "{m}", "-o", "{no}"], "is not UTF-8 text"),
        (["imatrix", "{m}", "{no}", "-o", "{no}"], "No such file"),
        (["imatrix", "{m}", "{t}", "-o", "{no}", "--chunks", "0"], "--chunks is 0"),
        (["imatrix", "--merge", "{m}", "-o", "{no}"], "is not an importance matrix"),
        (["imatrix", "--merge", "{no}", "-o", "{m}"], "is there already"),
        (["imatrix", "--merge", "{no}", "-o", "{m}", "--resume"], "--merge runs no model: leave out --resume"),
        (["imatrix", "--merge", "{no}", "-o", "{m}", "--process-output"], "leave out --process-output"),
    ],
)
def test_wrong_calls_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    model, text = write_model(tmp_path / "m.gguf", matrices=Q8_0), tmp_path / "t"
    text.write_text("text")
    before = model.read_bytes()
    filled = [word.format(m=model, no=tmp_path / "no", t=text) for word in words]
    assert reason in refused(capsys, *filled)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "t"]
    assert model.read_bytes() == before


# A chunk takes at least 20 ms, and all of them half a minute, so that Ctrl-C comes before the last one.
SLOW = """
import time
from sporelm.tools import imatrix
gather = imatrix.collect_imatrix
def slow(*given, **more):
    for found in gather(*given, **more):
        time.sleep(0.02)
        yield found
imatrix.collect_imatrix = slow
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_saves_what_was_gathered(tiny: Path) -> None:
    text, matrix = tiny.with_name("long.txt"), tiny.with_name("i.gguf")
    text.write_text(models.TEXT * 400, encoding="utf-8")
    words = command("gguf", "imatrix", tiny, text, "-o", matrix, "--context", "64", "--threads", "1")
    words[2] = SLOW + words[2]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    while not matrix.exists():  # after its first ten chunks
        assert running.poll() is None, running.communicate()
        sleep(0.02)
    os.kill(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    found = read_imatrix(matrix)
    assert found.chunks >= 10
    assert f"stopped after {found.chunks} of" in one_line(err)
    assert str(matrix) in out
    assert not [path for path in tiny.parent.iterdir() if path.name.endswith(".part")]
