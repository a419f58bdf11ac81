"""`spore chat` through a pipe."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from system.processes import Spore, command, environment, one_line


def test_chat_through_a_pipe(spore: Spore, talker: Path) -> None:
    lines = ["Once upon a time", "/list", "/fork", "and then", "/switch 1", "/list", "/nope", "/exit", "never said"]
    done = spore("chat", talker, "--temp", 0, "-n", 5, stdin="\n".join(lines))
    assert done.returncode == 1, "one command was unknown"
    assert "Unknown command: /nope" in done.stderr
    assert "conversation 2 (copy of 1)" in done.stdout
    assert "* 1  1 turn  Once upon a time" in done.stdout
    assert "  2  2 turns  Once upon a time" in done.stdout
    assert len(re.findall(r"tok/s.*seed", done.stderr)) == 2


def test_chat_answers_are_greedy_and_repeatable(spore: Spore, talker: Path) -> None:
    runs = [spore("chat", talker, "--temp", 0, "-n", 12, stdin="Once upon a time\n") for _ in range(2)]
    assert [done.returncode for done in runs] == [0, 0]
    assert runs[0].stdout == runs[1].stdout != "\n"


def test_chat_joins_lines_that_end_in_a_backslash(spore: Spore, talker: Path) -> None:
    done = spore("chat", talker, "--temp", 0, "-n", 3, stdin="Once upon\\\na time\n/list\n")
    assert done.returncode == 0, done.stderr
    assert "* 1  1 turn  Once upon a time" in done.stdout


def test_chat_args(spore: Spore, talker: Path) -> None:
    done = spore("chat", talker, stdin="/args max-tokens 2\nOnce\n/args top-k none\n")
    assert re.search(r"max-tokens +2", done.stdout)
    assert re.search(r"\b2 tokens,", done.stderr)
    assert "top-k cannot be 'none'" in done.stderr


def test_chat_without_a_template_says_so(spore: Spore, story: Path) -> None:
    done = spore("chat", story, stdin="Hello\n")
    assert done.returncode == 1
    assert "template" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_that_fails_says_why(spore: Spore, broken: Path) -> None:
    done = spore("chat", broken, stdin="Hello\n/list\n")
    assert done.returncode == 1
    assert "logits are not numbers" in one_line(done.stderr)
    assert "0 turns" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
@pytest.mark.parametrize("said", ["", "Once\n"])
def test_a_request_to_end_leaves_the_chat(talker: Path, tmp_path: Path, said: str) -> None:
    """While it waits for a line, and in the middle of an answer: it is not taken for Ctrl-C, which ends the answer."""
    words = command("chat", talker, "-n", 10**6, "--ignore-eos", "--roll", "--record", tmp_path / "r.jsonl")
    with subprocess.Popen(
        words,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(said or "/help\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in told
    assert (tmp_path / "r.jsonl").read_text(encoding="utf-8").endswith("}\n")
