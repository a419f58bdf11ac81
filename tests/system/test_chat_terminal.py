"""`spore chat` in a terminal: Ctrl-C stops the answer and not the program, Ctrl-D leaves."""

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from available import BACKENDS, open_available
from system.processes import SECONDS, command, environment

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals there", allow_module_level=True)
else:
    import pty
    import select

# `spore`, but a step takes one token and at least 50 ms: a prompt of some hundred tokens takes many seconds. STEP, if
# set, is written as each step begins.
SLOW = """
import os, sys, time
from dataclasses import replace
import sporelm.api.engine_loader as engine_loader
from sporelm.engine import Engine
step, limits = Engine.step, engine_loader.choose_limits
def slow(self):
    sys.stderr.write(os.environ.get("STEP", ""))
    sys.stderr.flush()
    time.sleep(0.05)
    return step(self)
Engine.step = slow
engine_loader.choose_limits = lambda *given: replace(limits(*given), token_budget=1)
from sporelm.cli.main import main
sys.exit(main())
"""


class Terminal:
    """A program in a pseudo-terminal, and what it has written there."""

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.execve(words[0], words, variables)
        self.screen = ""

    def until(self, pattern: str) -> None:
        """Read until the pattern is seen; what was read up to there is then forgotten."""
        end = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.screen)):
            alive = self.read() and time.monotonic() < end
            assert alive, f"no {pattern!r} in {self.screen!r}"
        self.screen = self.screen[found.end() :]

    def read(self) -> bool:
        """Wait a moment for more; False once the program has closed its end."""
        if select.select([self.file], [], [], 0.1)[0]:
            try:
                self.screen += os.read(self.file, 65536).decode("utf-8", "replace")
            except OSError:
                return False
        return True

    def type(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.file, text)

    def leave(self) -> None:
        """Press Ctrl-D until the program has ended: between two prompts it is not heard. It must end well."""
        end = time.monotonic() + SECONDS
        while (ended := os.waitpid(self.process, os.WNOHANG))[0] == 0:
            assert time.monotonic() < end, f"still running: {self.screen!r}"
            self.type(b"\x04")
            self.read()
        os.close(self.file)
        assert os.waitstatus_to_exitcode(ended[1]) == 0, self.screen


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each back-end that runs here."""
    open_available(request.param).close()
    return str(request.param)


def slow_chat(model: Path, data: Path, backend: str, step: str = "") -> Terminal:
    """A slow chat, started; `step` is what it writes as each step of the engine begins."""
    words = command("chat", model, "--temp", 0, "-n", 10**7, "--ignore-eos", "--roll", "--backend", backend)
    words[2] = SLOW
    return Terminal(words, environment(XDG_DATA_HOME=str(data), TERM="dumb", STEP=step))


def test_ctrl_c_stops_an_answer(talker: Path, tmp_path: Path, backend: str) -> None:
    terminal = slow_chat(talker, tmp_path, backend)
    terminal.until("1>")
    for turn in range(2):
        terminal.type(b"Once upon a time\r")
        terminal.until(r"time\s*\n(?!Onc)[^\n]*\w{3}" if turn else "little girl")  # not the echo
        terminal.type(b"\x03")
        terminal.until("stopped")
        terminal.until("1>")
    terminal.type(b"/list\r")
    terminal.until("(?s)2 turns  Once upon.*1>")
    terminal.leave()
    assert (tmp_path / "sporelm" / "chat_history").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_a_prompt_that_is_still_computed(talker: Path, tmp_path: Path, backend: str, presses: int) -> None:
    terminal = slow_chat(talker, tmp_path, backend, step="<step>")
    terminal.until("1>")
    terminal.type(b"Once upon a time " * 60 + b"end\r")
    terminal.until("<step>")
    for _ in range(presses):
        terminal.type(b"\x03")
        time.sleep(0.01)  # for a second one to be a second one
    terminal.until("stopped")
    terminal.until("1>")
    # The question was not answered, so it is not part of the conversation.
    terminal.type(b"/list\r")
    terminal.until(r"(?s)0 turns  \(empty\).*1>")
    terminal.type(b"/args max-tokens 2\r")
    terminal.until("(?s)max-tokens +2.*1>")
    terminal.type(b"Once\r")
    terminal.until("(?s)2 tokens, .*1>")
    terminal.leave()


def test_without_a_folder_for_the_history_the_chat_goes_on(talker: Path) -> None:
    terminal = slow_chat(talker, Path("/dev/null"), "reference")
    terminal.until("Not a directory; the chat history is not saved")
    terminal.until("1>")
    terminal.type(b"/list\r")
    terminal.until("(?s)0 turns.*1>")
    terminal.leave()


@pytest.mark.parametrize("answering", [False, True])
@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_a_chat_that_is_ended_leaves_a_whole_recording(talker: Path, tmp_path: Path, answering: bool, how: str) -> None:
    """Its terminal is closed, or it is asked to end: while it waits for a line, and in the middle of an answer."""
    record = tmp_path / "r.jsonl"
    words = command("chat", talker, "-n", 100_000, "--ignore-eos", "--roll", "--temp", 0, "--record", record)
    terminal = Terminal(words, environment(XDG_DATA_HOME=str(tmp_path), TERM="dumb"))
    terminal.until("1>")
    if answering:
        terminal.type(b"Once upon a time\r")
        terminal.until("little girl")
    if how == "closed":
        os.close(terminal.file)
    else:
        os.kill(terminal.process, signal.SIGTERM)
    end = time.monotonic() + SECONDS
    while (ended := os.waitpid(terminal.process, os.WNOHANG))[0] == 0:
        assert time.monotonic() < end, "still running"
        if how != "closed":
            terminal.read()
    # A prompt may see the end of its input before the signal.
    allowed = {143} if how == "SIGTERM" else {129} if answering else {0, 129}
    assert os.waitstatus_to_exitcode(ended[1]) in allowed
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]
    assert record.read_text(encoding="utf-8").endswith("}\n")
