"""Fixtures of all tests: the shared data beside the repository, the models, and the option `--all`."""

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked 'all'")


def pytest_report_header() -> list[str]:
    """Say which CPU targets are tested and when kernels are compiled, the slow part of a first run."""
    from cpu_targets import TARGETS
    from sporelm import settings

    folder = settings.KERNEL_CACHE.path
    is_empty = not any(folder.glob("*.o"))
    state = "empty: kernels are compiled when a test first needs them, which takes minutes" if is_empty else "in use"
    return [f"CPU targets: {', '.join(TARGETS)}", f"kernel cache: {folder}, {state}"]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # not what only starts workers
        hear_signals()
    choose_examples(config)


def hear_signals() -> None:
    """Hear what a shell has its background commands ignore, Ctrl-C, and what `nohup` does: the programs that tests
    start, and send signals to, would inherit that."""
    heard: dict[str, Any] = {"SIGINT": signal.default_int_handler} | dict.fromkeys(("SIGHUP", "SIGTERM"), hear_nothing)
    for name, handler in heard.items():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # in another thread than the main one
                signal.signal(number, handler)


def hear_nothing(*_: object) -> None:
    """A handler as good as none, which no other program inherits."""


def choose_examples(config: pytest.Config) -> None:
    """Have hypothesis try the same examples in every run, new ones with `--all`; no time is too long for one."""
    if config.getoption("--hypothesis-profile", None):
        return
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return
    same: dict[str, Any] = {} if config.getoption("--all") else {"derandomize": True, "database": None}
    settings.register_profile("sporelm", deadline=None, suppress_health_check=[HealthCheck.too_slow], **same)
    settings.load_profile("sporelm")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out parameter sets marked `all` before items are made of them: a hundred thousand in tests/conformance."""
    if metafunc.config.getoption("--all"):
        return
    marks = metafunc.definition.own_markers
    for index, mark in enumerate(marks):
        if mark.name != "parametrize" or len(mark.args) != 2 or "ids" in mark.kwargs:
            continue
        sets = list(mark.args[1])
        kept = [each for each in sets if not is_marked_all(each)]
        if kept and len(kept) < len(sets):  # without any, the items are deselected below
            marks[index] = pytest.mark.parametrize(mark.args[0], kept, **mark.kwargs).mark


def is_marked_all(parameters: Any) -> bool:
    return any(mark.name == "all" for mark in getattr(parameters, "marks", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if item.get_closest_marker("all") else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of test data that lies beside the repository; skips where there is none."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no folder ../shared with the test data beside the repository")
    return folder


@pytest.fixture(scope="session")
def story(shared: Path) -> Path:
    """The Hugging Face folder of the story model (two layers, f32)."""
    return shared / "data" / "story"


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct Q4_1 in the model store; fetched with --all, otherwise a test without it is skipped."""
    from sporelm.files import store

    found = store.find("smollm2")
    if found is not None:
        return found
    if request.config.getoption("--all"):
        return store.pull("smollm2")
    pytest.skip("SmolLM2 is not in the model store: run 'spore pull smollm2', or the tests with --all")


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `spore chat` with lines of input; exit code, stdout, stderr."""
    from sporelm.cli.main import main

    def run(words: list[str], *lines: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", *words])
        return code, *capsys.readouterr()

    return run
