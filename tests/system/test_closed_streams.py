"""Standard streams that a shell closed before the program began."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from sporelm.cli.main import COMMANDS
from sporelm.cli.standard_streams import INPUT_CLOSED, OUTPUT_CLOSED
from system.processes import command, environment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells of POSIX close a stream with <&- and >&-")

CLOSINGS = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
ARGUMENTS = {  # of each command, so that it works, or reads its input, or fails for another reason
    "run": "{story} -p a -n 2",
    "chat": "{story}",
    "serve": "--config nowhere.toml",
    "bench": "{story} --tokens none",
    "bench serve": "--url http://127.0.0.1:9",
    "bench tune": "--nothing",
    "eval": "ppl {story} -",
    "embed": "{story} a",
    "rerank": "{story} a b",
    "tokenize": "{story} a",
    "list": "",
    "doctor": "",
    "info": "{story} --no-speed",
    "pull": "a/b",
    "rm": "nothing",
    "gguf": "",
}


def run_closed(words: list[str], closing: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `spore` by a shell that closes streams, in an empty folder."""
    line = f"{shlex.join(command(*words))} {closing}"
    variables = environment(SPORE_MODEL_STORE=str(folder / "store"), SPORE_THREADS="1")
    return subprocess.run(
        ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, cwd=folder, env=variables, capture_output=True,
        encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


IN_SHORT = [(name, "<&-") for name in COMMANDS] + [(name, each) for name in ("run", "serve") for each in CLOSINGS[1:]]
CASES = [
    pytest.param(name, closing, marks=[] if (name, closing) in IN_SHORT else [pytest.mark.all])
    for name in COMMANDS
    for closing in CLOSINGS
]


@pytest.mark.parametrize(("name", "closing"), CASES)
def test_a_closed_stream_gives_no_traceback(story: Path, tmp_path: Path, name: str, closing: str) -> None:
    words = ARGUMENTS.get(name, "nowhere").format(story=story).split()
    done = run_closed([*name.split(), *words], closing, tmp_path)
    assert done.returncode in (0, 1, 2)
    for sign in ("Traceback", "AttributeError", "NoneType", "unexpected ", "Exception ignored", "Bad file"):
        assert sign not in done.stderr, done.stderr
    if " " in closing or closing == "2>&-":
        assert done.stderr == ""
    elif closing == ">&-" and name != "serve":
        assert (done.returncode, done.stderr) == (1, f"spore: {OUTPUT_CLOSED}\n")


@pytest.mark.parametrize("words", ["run {} -f -", "eval ppl {} -", "chat {}"])
def test_a_closed_input_is_not_an_empty_one(story: Path, tmp_path: Path, words: str) -> None:
    done = run_closed(words.format(story).split(), "<&-", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"spore: {INPUT_CLOSED}\n")


def test_a_closed_error_leaves_the_answer(story: Path, tmp_path: Path) -> None:
    done = run_closed(["tokenize", str(story), "once"], "2>&-", tmp_path)
    assert done.returncode == 0
    assert done.stdout


def test_no_file_takes_the_descriptor_of_a_closed_stream(tmp_path: Path) -> None:
    """Output of a library to descriptor 2 must not land in a file that the program writes."""
    program = (
        "import os; from sporelm.cli.standard_streams import reopen_closed; reopen_closed(); "
        "file = open('written', 'wb'); os.write(1, b'printed'); os.write(2, b'printed'); "
        "assert file.fileno() > 2; assert os.get_inheritable(1)"
    )
    line = f"{shlex.join([*command()[:2], program])} <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, env=environment(), check=False, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "written").read_bytes() == b""
