"""A model that is closed while others use it."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sporelm import LLM, SamplingParams
from sporelm.errors import RequestError
from system.processes import command, environment


def test_closing_waits_for_the_step_and_ends_what_runs(shared: Path) -> None:
    """A caller in the middle of an answer hears of it, and no kernel runs on memory that is gone."""
    for number in range(4):
        llm = LLM(shared / "data" / "story", max_context=512, threads=2)
        heard: list[str] = []

        def ask(llm: LLM = llm, heard: list[str] = heard) -> None:
            try:
                found = llm.generate(["a " * 50] * 8, SamplingParams(max_tokens=400, ignore_eos=True))
                heard.extend(answer.finish_reason for answer in found)
            except RequestError as reason:
                heard.append(re.sub(r"^prompt \d of 8: ", "", str(reason)))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.02 * number)
        llm.close()
        asking.join(60)
        assert heard, "it has ended"
        assert set(heard) <= {"cancelled", "length", "this model is closed: open it again"}
        with pytest.raises(RequestError, match="closed"):
            llm.generate("a")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_server_hears_of_its_end_in_its_own_way(story: Path, name: str) -> None:
    words = command("serve", "--model", story, "--port", 0)
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        told = ""
        while "Ctrl-C ends" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        process.send_signal(getattr(signal, name))
        told += process.stderr.read()
        assert process.wait(60) == 128 + getattr(signal, name)
    assert "Traceback" not in told
    assert "unloaded" in told


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("where", ["uvicorn_runner.startup_lines", "model_pool._file_bytes", "model_pool.AsyncLLM"])
def test_a_server_that_is_ended_while_it_starts_says_nothing_of_errors(story: Path, where: str, name: str) -> None:
    """The signal comes when the server calls a certain function: between its address is told and it listens, before its
    model is loaded, and in the thread that loads it."""
    module, function = where.split(".")
    code = f"""
import os, signal, sys
from sporelm.cli.main import main
from sporelm.serve import uvicorn_runner
from sporelm.serve.model_pool import model_pool
inner = {module}.{function}
def ended(*given, **named):
    os.kill(os.getpid(), signal.{name})
    return inner(*given, **named)
{module}.{function} = ended
sys.exit(main())
"""
    words = [sys.executable, "-c", code, "serve", "--model", str(story), "--port", "0"]
    found = subprocess.run(words, env=environment(), capture_output=True, encoding="utf-8", timeout=60)
    assert found.returncode == 128 + getattr(signal, name), found.stderr
    assert "Traceback" not in found.stderr
    assert ("unloaded" in found.stderr) is ("loaded story in" in found.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_comes_in_a_finalizer_is_not_lost(name: str) -> None:
    """Python cannot raise there: it would print a traceback and go on."""
    code = f"""
import os, signal, sys, time
from sporelm.cli import main
class Ended:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.001)
def dispatch(words):
    Ended()
    time.sleep(50)
main.dispatch = dispatch
sys.exit(main.main())
"""
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, env=environment(), capture_output=True, encoding="utf-8", timeout=40)
    assert (found.returncode, found.stderr) == (128 + getattr(signal, name), "")
