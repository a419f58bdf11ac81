"""Commands without a model: help, wrong usage, missing models, doctor."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sporelm.cli import main
from sporelm.cli.memory_errors import out_of_memory
from system.processes import Spore, environment, one_line


def test_help_and_version(spore: Spore) -> None:
    done = spore("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"  {name} " in done.stdout for name in main.COMMANDS if not name.startswith("gguf "))
    tools = spore("gguf", "--help").stdout
    assert all(f"  {name.removeprefix('gguf ')} " in tools for name in main.COMMANDS if name.startswith("gguf "))
    assert spore("--version").stdout == "spore 0.1.0\n"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command(spore: Spore, name: str) -> None:
    done = spore(*name.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: spore {name}")


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["run"],
        ["run", "-p", "a", "-f", "b"],
        ["run", "-p", "a", "-n", "many"],
        ["run", "-p", "a", "--max-tok", "3"],
        ["eval", "speed", "m", "f"],
        ["bench", "-b", "1;8"],
        ["bench", "--json", "--csv"],
        ["bench", "tune", "model.gguf"],
        ["tokenize"],
        ["pull"],
        ["gguf", "fly"],
        ["gguf", "show"],
        ["gguf", "show", "a", "-n", "few"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_2(spore: Spore, words: list[str]) -> None:
    done = spore(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--help'" in one_line(done.stderr)


def test_no_command_shows_the_overview(spore: Spore) -> None:
    done = spore()
    assert (done.returncode, done.stdout) == (2, "")
    assert "commands:" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nowhere.gguf", "-p", "a"], "no model at 'nowhere.gguf'"),
        (["run", "no-such-name", "-p", "a"], "no model 'no-such-name'"),
        (["tokenize", "../up", "a"], "no model at '../up'"),
        (["chat", "hf:wrong"], "is not an address"),
        (["pull", "../x"], "is not a valid model name"),
        (["run", "-f", "nowhere.txt"], "nowhere.txt"),
        (["bench", "synthetic:"], "shapes: tiny, "),
        (["bench", "tune", "--format", "Q9"], "no format 'Q9' has kernels of its own; there are F32, "),
        (["bench", "tune", "--target", "z80"], "--target: not supported on this CPU (got 'z80'"),
        (["run", "synthetic:tiny:q4_0", "-p", "a"], "only 'spore bench' accepts it"),
        (["gguf", "set-meta", "nowhere.gguf", "a=1", "-o", "x"], "no model at"),
        (["gguf", "quantize", "nowhere.gguf", "--type", "Q8_0"], "no model at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_failure_is_one_line_and_1(spore: Spore, tmp_path: Path, words: list[str], message: str) -> None:
    done = spore(*words, SPORE_MODEL_STORE=str(tmp_path / "store"))
    assert (done.returncode, done.stdout) == (1, "")
    line = one_line(done.stderr)
    assert line.startswith("spore: ")
    assert message in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "-p", "a", "-n", "0"], "max_tokens"),
        (["run", "-p", "a", "--temp", "-1"], "temperature"),
        (["run", "-p", "a", "--threads", "0"], "--threads is 0"),
        (["run", "-p", "a", "--kv-memory", "lots"], "--kv-memory is 'lots': give bytes, or a size such as 512M"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["gguf", "quantize", "f"], "--type is missing"),
        (["gguf", "quantize", "f", "--type", "bogus"], "there is no 'bogus'"),
        (["gguf", "quantize", "f", "--type", "Q8_0", "--threads", "0"], "--threads is 0"),
        (["gguf", "quantize", "f", "--type", "Q8_0", "--tensor", "a"], "PATTERN=TYPE"),
        (["gguf", "convert", "f", "-o", "x"], "-x STEPS is missing"),
        (["gguf", "convert", "f", "-x", "sort"], "-o OUT is missing"),
        (["gguf", "convert", "f", "-o", "x", "-x", "bogus"], "no step 'bogus'"),
        (["gguf", "convert", "f", "-o", "x", "-x", ""], "no step ''"),
        (["gguf", "convert", "f", "-o", "x", "-x", "sort:a"], "takes no argument"),
        (["gguf", "convert", "f", "-o", "x", "-x", "merge-linear:x"], "knows the groups"),
        (["gguf", "convert", "f", "-o", "x", "-x", "filter-meta"], "needs a pattern"),
        (["gguf", "convert", "f", "-o", "x", "-x", "cast:linear:Q99"], "cannot make 'Q99'"),
        (["gguf", "set-meta", "f", "a=1"], "either -o OUT"),
        (["gguf", "set-meta", "f", "a=1", "-o", "x", "--in-place"], "either -o OUT"),
        (["gguf", "set-meta", "f", "noequals", "-o", "x"], "is not KEY=VALUE"),
        (["gguf", "split", "f", "--max-size", "5X"], "size '5X'"),
        (["gguf", "split", "f", "--max-tensors", "-3"], "--max-tensors is -3"),
        (["gguf", "split", "f", "--max-tensors", "3", "--max-size", "5M"], "exclude each other"),
        (["gguf", "show-data", "f", "t", "--bins", "0"], "--bins is 0"),
        (["gguf", "imatrix", "f", "t"], "-o OUT is missing"),
        (["gguf", "to-hf", "f", "--shard-size", "0"], "size '0'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_no_file_makes_right_are_one_line_and_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main.main(words) == 2
    line = one_line(capsys.readouterr().err)
    assert line.startswith("spore: ")
    assert message in line


def test_text_that_is_not_utf8(spore: Spore, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    done = spore("run", "-f", "latin.txt")
    assert done.returncode == 1
    assert "byte 3 is 0xe9" in one_line(done.stderr)


def test_debug_shows_the_traceback(spore: Spore) -> None:
    done = spore("pull", "../x", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("spore: ")


def test_doctor(spore: Spore, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "kernel.o").write_bytes(b"12345")
    done = spore("doctor", "--json", SPORE_KERNEL_CACHE=str(cache), SPORE_MODEL_STORE=str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backends"]["reference"]["ready"]
    assert report["backends"]["reference"]["lacks"] == []
    assert report["backends"]["cpu"]["ready"] or report["backends"]["cpu"]["reason"]
    assert report["kernel_cache"]["path"] == str(cache)
    assert report["kernel_cache"]["bytes"] >= 5
    if sys.platform != "win32":
        assert report["kernel_cache"]["mode"] == f"{stat.S_IMODE(os.stat(cache).st_mode):04o}" == "0700"
    assert report["model_store"] == {"path": str(tmp_path / "store"), "models": {}, "known": ["smollm2"]}
    text = spore("doctor", SPORE_KERNEL_CACHE=str(cache))
    assert text.returncode == 0
    assert str(cache) in text.stdout


@pytest.mark.all  # hundreds of kernels; tests/conformance/test_ops.py runs the same cases
def test_doctor_conformance(spore: Spore) -> None:
    done = spore("doctor", "--conformance", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    rows = json.loads(done.stdout)["conformance"]
    assert {row["state"] for row in rows} <= {"equal"}
    assert {"attention f16 window 9", "linear Q4_1 33"} <= {row["case"] for row in rows if row["backend"] == "cpu"}


def test_tokenize_takes_a_folder_without_a_model(spore: Spore, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    folder = tmp_path / "only a tokenizer"
    folder.mkdir()
    Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(str(folder / "tokenizer.json"))
    done = spore("tokenize", str(folder), "abb", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ids"] == [2, 1]


def test_a_failure_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.print_error("no\x1b[31m such\nfile \x9b1m\u202e é", []) == 1
    assert capsys.readouterr().err == "spore: no\\x1b[31m such file \\x9b1m\\u202e é\n"


# Tests that run in a shell's background inherit that Ctrl-C is ignored.
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
CUT_SHORT = """
import builtins, os, signal, sys
real = builtins.__import__
def cut(name, *rest):
    if name == {module!r}:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            if {hides}:
                raise ImportError("numpy's own words") from None
            raise
    return real(name, *rest)
builtins.__import__ = cut
sys.argv = ["spore", "gguf", "show", "nowhere.gguf"]
from sporelm.cli.main import main
sys.exit(main())
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("module", "hides"),
    [("errno", False), ("sporelm.cli.parser", False), ("numpy", False), ("numpy", True)],
)
def test_ctrl_c_in_an_import_is_silent_and_130(module: str, hides: bool) -> None:
    code = HEARD + CUT_SHORT.format(module=module, hides=hides)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


AT_THE_END = """
import atexit, os, signal, sys
from sporelm.cli.main import main
sys.argv = ["spore", "--version"]
code = main()
if {late}:
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
else:
    os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_after_all_is_done_changes_nothing(late: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEARD + AT_THE_END.format(late=late)], capture_output=True, text=True, env=environment(),
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "spore 0.1.0\n", "")


def test_what_has_no_effect_on_a_score_is_refused(spore: Spore) -> None:
    for options in (["--speculate", "ngram"], ["--draft-model", "small.gguf"]):
        done = spore("eval", "ppl", "model.gguf", "text.txt", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"unrecognized arguments: {' '.join(options)}" in one_line(done.stderr)


def test_the_package_is_the_command_too() -> None:
    words = [sys.executable, "-m", "sporelm", "--version"]
    done = subprocess.run(words, env=environment(), capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "spore 0.1.0\n", "")


def test_memory_that_the_system_refuses_is_told_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(words: list[str]) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")  # as mmap does under `ulimit -v`

    monkeypatch.setattr(main, "dispatch", refuse)
    assert main.main(["list"]) == 1
    assert one_line(capsys.readouterr().err) == f"spore: {out_of_memory()}"
