"""Files of measurements: processes that save at the same time keep one another's entries."""

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from sporelm.backends import measurement_file
from sporelm.backends.file_lock import try_lock
from sporelm.backends.measurement_file import LOCK_SUFFIX, MeasurementFile, exclusive_access

KIND = MeasurementFile("entries", ("device", "driver"), dict)
NUM_PROCESSES, NUM_ENTRIES = 3, 40
PROGRAM = """
import sys
from pathlib import Path
from sporelm.backends.measurement_file import MeasurementFile
print("ready", flush=True)
sys.stdin.readline()
kind = MeasurementFile("entries", ("device", "driver"), dict)
for number in range(int(sys.argv[3])):
    kind.save(Path(sys.argv[1]), {"device": sys.argv[2], "driver": str(number)})
"""


@pytest.fixture
def needs_locks(tmp_path: Path) -> None:
    with (tmp_path / "probe").open("x+b") as file:
        if not try_lock(file):
            pytest.skip("this system has no locks of files")
    (tmp_path / "probe").unlink()


def test_concurrent_processes_keep_each_others_entries(tmp_path: Path, needs_locks: None) -> None:
    path = tmp_path / "folder" / "file.json"
    commands = [
        [sys.executable, "-c", PROGRAM, str(path), str(number), str(NUM_ENTRIES)] for number in range(NUM_PROCESSES)
    ]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.communicate("go\n", timeout=60)
        assert child.returncode == 0
    expected = {(str(child), str(number)) for child in range(NUM_PROCESSES) for number in range(NUM_ENTRIES)}
    assert KIND.read(path).keys() == expected
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]


def test_a_save_waits_for_another(tmp_path: Path, needs_locks: None) -> None:
    path = tmp_path / "file.json"
    saving = Thread(target=KIND.save, args=(path, {"device": "second", "driver": "1"}))
    with exclusive_access(path):
        saving.start()
        saving.join(0.1)
        assert not path.exists()
        path.write_text(json.dumps({"entries": [{"device": "first", "driver": "1"}]}), "utf-8")
    saving.join()
    assert KIND.read(path).keys() == {("first", "1"), ("second", "1")}


def test_a_lock_that_is_never_released_is_an_error(
    tmp_path: Path, needs_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_file, "WAIT_SECONDS", 0.05)
    path = tmp_path / "file.json"
    with (
        exclusive_access(path),
        pytest.raises(OSError, match=r"file.json.lock: another process has locked it for more than 0.05 s"),
    ):
        KIND.save(path, {"device": "a", "driver": "1"})


def test_a_lock_file_that_was_left_behind_locks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.with_name(path.name + LOCK_SUFFIX).touch()
    KIND.save(path, {"device": "a", "driver": "1"})
    KIND.save(path, {"device": "a", "driver": "1", "more": 2})
    assert KIND.read(path) == {("a", "1"): {"device": "a", "driver": "1", "more": 2}}
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]
