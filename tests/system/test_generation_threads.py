"""How many threads a process takes: what was asked for, or the cores that affinity and control groups leave."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sporelm import LLM, settings
from sporelm.api.cpu_count import choose_threads, last_level_cache_bytes
from sporelm.backends.host_cores import usable_cores
from sporelm.cli.main import main
from sporelm.errors import RequestError


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) == 0
    for number, size in enumerate(["32K", "2M", "266240K", "nonsense"]):
        file = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{number}/size"
        file.parent.mkdir(parents=True)
        file.write_text(f"{size}\n")
    assert last_level_cache_bytes(tmp_path) == 266240 << 10


def test_what_was_asked_for_counts() -> None:
    most = 2 * usable_cores()
    for fine in (1, most):
        assert choose_threads(fine) == fine
    for wrong in (0, -1, most + 1, 10**6):
        with pytest.raises(RequestError, match=f"threads is {wrong}: .* 1 to {most}, twice the usable cores. Leave it"):
            choose_threads(wrong)


@pytest.mark.parametrize("wrong", ["0", "-1", "1000000"])
def test_the_environment_is_refused_as_an_option_is(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(settings, "THREADS", replace(settings.THREADS, default=lambda: wrong))
    monkeypatch.delenv("SPORE_THREADS", raising=False)
    with pytest.raises(RequestError, match=r"^SPORE_THREADS is ") as of_environment:
        choose_threads()
    with pytest.raises(RequestError, match=r"^threads is ") as of_option:
        choose_threads(int(wrong))
    assert str(of_environment.value) == f"SPORE_{str(of_option.value)[0:7].upper()}{str(of_option.value)[7:]}"


def test_the_environment_asks_for_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    too_many = 2 * usable_cores() + 1
    monkeypatch.setattr(settings, "THREADS", replace(settings.THREADS, default=lambda: str(too_many)))
    monkeypatch.delenv("SPORE_THREADS", raising=False)
    with pytest.raises(RequestError, match=f"SPORE_THREADS is {too_many}: it must be a whole number from 1 to"):
        choose_threads()
    assert choose_threads(1) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("run", "{story}", "-p", "Hi"),
        ("info", "{story}"),
        ("gguf", "from-hf", "{story}", "-o", "{folder}/new.gguf"),
        ("gguf", "imatrix", "{story}", "{folder}", "-o", "{folder}/new.gguf"),
        ("serve", "{story}", "--port", "0"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_refuse_too_many(
    words: Sequence[str], story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_many = 2 * usable_cores() + 1
    words = [word.format(story=story, folder=tmp_path) for word in words]
    code = main([*words, "--threads", str(too_many)])
    written = capsys.readouterr()
    assert f"--threads is {too_many}: it must be a whole number from 1 to {too_many - 1}, twice" in written.err
    assert len(written.err.splitlines()) == 1
    assert code == 2
    assert not [*tmp_path.iterdir()]


def test_a_server_s_file_asks_for_too_many(story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("[engine]\nthreads = 1000\n")
    assert main(["serve", str(story), "--port", "0", "--config", str(file)]) == 1
    assert "threads is 1000: it must be a whole number from 1 to" in capsys.readouterr().err


def test_python_refuses_too_many(story: Path) -> None:
    with pytest.raises(RequestError, match="threads is 1000: "):
        LLM(story, threads=1000)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_a_system_that_starts_no_thread(story: Path) -> None:
    """Stacks are larger than what the process may map, as with many threads under `ulimit -v`."""
    program = f"""
import resource, threading
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
threading.stack_size(32 << 30)
from sporelm.backends.host_cores import usable_cores
from sporelm.cli.main import main
raise SystemExit(main(["run", {str(story)!r}, "-p", "Hi", "-n", "2", "--threads", "2"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("spore: threads: cannot start another one")
    assert "--threads or SPORE_THREADS" in done.stderr
    assert len(done.stderr.splitlines()) == 1
