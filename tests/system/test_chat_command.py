"""`spore chat` through a pipe and in a terminal. It needs a chat template: the story model gets one here."""

import contextlib
import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from system.processes import SECONDS, Spore, command, environment

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '' }}{% endif %}"
)


@pytest.fixture
def talker(story: Path, tmp_path: Path) -> Path:
    """The story model with a chat template that puts the messages in a row."""
    folder = tmp_path / "talker"
    folder.mkdir()
    for source in story.iterdir():
        shutil.copyfile(source, folder / source.name)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"chat_template": TEMPLATE}), encoding="utf-8")
    return folder


def test_chat_through_a_pipe(spore: Spore, talker: Path) -> None:
    lines = ["Once upon a time", "/list", "/fork", "and then", "/switch 1", "/list", "/nope", "/exit", "never said"]
    done = spore("chat", talker, "--temp", 0, "-n", 5, stdin="\n".join(lines))
    assert done.returncode == 1, "one command was unknown"
    assert "Unknown command: /nope" in done.stderr
    assert "conversation 2 (copy of 1)" in done.stdout
    assert "* 1  1 turns  Once upon a time" in done.stdout
    assert "  2  2 turns  Once upon a time" in done.stdout
    assert len(re.findall(r"tok/s.*seed", done.stderr)) == 2


def test_chat_answers_are_greedy_and_repeatable(spore: Spore, talker: Path) -> None:
    runs = [spore("chat", talker, "--temp", 0, "-n", 12, stdin="Once upon a time\n") for _ in range(2)]
    assert [done.returncode for done in runs] == [0, 0]
    assert runs[0].stdout == runs[1].stdout != "\n"


def test_chat_joins_lines_that_end_in_a_backslash(spore: Spore, talker: Path) -> None:
    done = spore("chat", talker, "--temp", 0, "-n", 3, stdin="Once upon\\\na time\n/list\n")
    assert done.returncode == 0, done.stderr
    assert "* 1  1 turns  Once upon a time" in done.stdout


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


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_chat_in_a_terminal(talker: Path, tmp_path: Path) -> None:
    """Ctrl-C stops the answer and not the program; Ctrl-D leaves."""
    import os
    import pty
    import select

    words = command("chat", talker, "--temp", 0, "-n", 100000, "--ignore-eos", "--backend", "reference")
    process, terminal = pty.fork()
    if process == 0:
        os.execve(words[0], words, environment(XDG_DATA_HOME=str(tmp_path), TERM="dumb"))
    screen = ""

    def until(pattern: str) -> None:
        nonlocal screen
        end = time.monotonic() + SECONDS
        while not re.search(pattern, screen):
            assert time.monotonic() < end, f"no {pattern!r} in {screen!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                screen += os.read(terminal, 65536).decode("utf-8", "replace")

    until("1>")
    os.write(terminal, b"Once upon a time\r")
    until("little girl")
    os.write(terminal, b"\x03")
    until("(stopped|cancelled|tok/s)")
    screen = ""
    until("1>")
    os.write(terminal, b"/list\r")
    until("(?s)1 turns  Once upon.*1>")
    end = time.monotonic() + SECONDS
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        assert time.monotonic() < end, f"still running: {screen!r}"
        with contextlib.suppress(OSError):  # a terminal whose other end is closed
            os.write(terminal, b"\x04")  # again and again: between two prompts it is not heard
            if select.select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert (tmp_path / "sporelm" / "chat_history").stat().st_mode & 0o077 == 0
