"""The check of drivers in a process of its own: one that dies or hangs makes the back-end unavailable."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from sporelm import settings
from sporelm.backends.file_cache import ObjectCache
from sporelm.backends.opencl_detection import find_driver_failure, list_opencl_candidates
from sporelm.backends.protocol import Missing
from sporelm.errors import BackendError

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm.backends.opencl import OpenClBackend, driver_check
from sporelm.backends.opencl.driver_check import check_driver, driver_key

DEATHS = {
    "os.abort()": r"ended a process that used it \(signal 6, SIGABRT\)",
    "os.kill(os.getpid(), signal.SIGSEGV)": r"ended a process that used it \(signal 11, SIGSEGV\)",
    "os._exit(3)": r"ended a process that used it \(exit code 3\)",
}


@pytest.fixture
def unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectCache:
    """A cache without successes."""
    cache = ObjectCache(tmp_path / "kernels", 1 << 24)
    monkeypatch.setattr(driver_check, "ObjectCache", lambda: cache)
    monkeypatch.setattr(driver_check, "_results", {})
    return cache


def break_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let the child process find a pyopencl whose import does what a broken driver does. This one has the real one."""
    (folder / "pyopencl.py").write_text(f"import os, signal, time\n{fault}\n", "utf-8")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("fault", DEATHS)
def test_a_driver_that_dies_is_an_error_in_one_line(
    fault: str, unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_driver(tmp_path, monkeypatch, fault)
    with pytest.raises(
        BackendError, match=f"the OpenCL driver {DEATHS[fault]}. Update or remove the driver.*option"
    ) as raised:
        check_driver(None)
    assert "\n" not in str(raised.value)


def test_a_driver_that_dies_is_missing_and_never_chosen(
    unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spore doctor` and --backend auto show the reason; auto goes on without it."""
    break_driver(tmp_path, monkeypatch, "os.abort()")
    state = OpenClBackend().probe()
    assert isinstance(state, Missing)
    assert "the OpenCL driver ended a process that used it" in state.reason
    assert list_opencl_candidates() == []
    assert find_driver_failure() == f"{state.reason}."


def test_a_driver_that_works_has_no_failure(unchecked: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_check, "_run_child", lambda device: None)
    assert find_driver_failure() is None


def test_the_error_shows_what_the_driver_wrote_last(
    unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_driver(tmp_path, monkeypatch, "os.write(2, b'first\\n: CommandLine Error: registered twice!\\n'); os.abort()")
    with pytest.raises(BackendError, match=r"\(signal 6, SIGABRT: : CommandLine Error: registered twice!\). Update"):
        check_driver(None)


def test_an_error_of_python_is_not_called_one_of_the_driver(
    unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_driver(tmp_path, monkeypatch, "raise ValueError('half installed')")
    with pytest.raises(BackendError, match=r"before it used the driver: ValueError: half installed. Install"):
        check_driver(None)


def test_a_failure_is_kept_for_the_process(
    unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hangs would else cost a minute for each question."""
    break_driver(tmp_path, monkeypatch, "os.abort()")
    for _ in range(2):
        with pytest.raises(BackendError, match="SIGABRT"):
            check_driver(None)
        monkeypatch.setattr(driver_check, "_run_child", lambda device: pytest.fail("it is checked again"))


def test_a_driver_that_hangs_is_an_error(
    unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_driver(tmp_path, monkeypatch, "time.sleep(60)")
    monkeypatch.setattr(driver_check, "CHECK_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(BackendError, match=r"the OpenCL driver hangs \(a process that used it did not end in 0.2 s\)"):
        check_driver(None)


def test_a_success_is_kept(unchecked: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the driver reports errors: the back-end has a text for each. A failure is not kept."""
    check_driver("no such device", unchecked)
    assert unchecked.get(driver_key("no such device")) is not None
    break_driver(tmp_path, monkeypatch, "os.abort()")
    monkeypatch.setattr(driver_check, "_results", {})
    check_driver("no such device", unchecked)
    for _ in range(2):
        with pytest.raises(BackendError):
            check_driver("another", unchecked)


def test_the_key_names_the_installed_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "OPENCL_VENDORS", SimpleNamespace(value=str(tmp_path), path=tmp_path))
    keys = []
    for content in (None, "libone.so", "libtwo.so"):
        if content is not None:
            (tmp_path / "one.icd").write_text(content, "utf-8")
        keys.append(driver_key(None))
    assert len({*keys, driver_key("gpu")}) == 4


def test_the_key_names_the_driver_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of a driver may leave the file that names it as it is."""
    monkeypatch.setattr(settings, "OPENCL_VENDORS", SimpleNamespace(value=str(tmp_path), path=tmp_path))
    library = tmp_path / "libone.so"
    (tmp_path / "one.icd").write_text(f"{library}\n", "utf-8")
    keys = [driver_key(None)]
    for content in ("old", "newer"):
        library.write_text(content, "utf-8")
        keys.append(driver_key(None))
    assert len(set(keys)) == 3
