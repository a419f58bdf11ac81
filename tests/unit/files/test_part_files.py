"""Unfinished files: those of a process that was killed are removed, those of a living one never."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sporelm.backends import file_lock
from sporelm.files import part_files
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.part_files import PartFiles, remove_abandoned
from sporelm.files.store.folder_lock import LOCK, make_scratch_folder

SOURCE = Path(__file__).resolve().parents[3] / "src"


def begin(code: str, *words: object) -> "subprocess.Popen[str]":
    """Run code in a process of its own until it has printed a line; it then waits."""
    program = "import sys, time\n" + textwrap.dedent(code) + "\nprint('ready', flush=True)\ntime.sleep(600)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WRITES = """
    from pathlib import Path
    from sporelm.files.atomic_write import Job, write_beside
    def fill(file):
        file.write(b"half")
        file.flush()
        print('ready', flush=True)
        time.sleep(600)
    write_beside([Job(Path(sys.argv[1]), fill)])
"""

WRITES_ALL = """
    from pathlib import Path
    from sporelm.files.atomic_write import Job, write_beside
    write_beside([Job(Path(sys.argv[1]), lambda file: file.write(b"all"))])
"""


def test_parts_stay_while_their_process_lives_and_go_when_it_was_killed(tmp_path: Path) -> None:
    place = tmp_path / "model.gguf"
    writer = begin(WRITES, place)
    try:
        write_beside([Job(place, lambda file: file.write(b"mine"))])
        assert remove_abandoned(tmp_path) == 0
        part, lock, own = names(tmp_path)
        assert part.startswith(f".model.gguf.{writer.pid}-")
        assert part.endswith(".0.part")
        assert lock.startswith(f".sporelm-{writer.pid}-")
        assert own == "model.gguf"
    finally:
        kill(writer)
    assert len(names(tmp_path)) == 3
    kill(begin(WRITES_ALL, tmp_path / "other.gguf"))  # the next run, which has ended its work when it is killed
    assert names(tmp_path) == ["model.gguf", "other.gguf"]
    assert place.read_bytes() == b"mine"


STOPS_RENAMING = """
    import os
    from pathlib import Path
    from sporelm.files.atomic_write import Job, write_beside
    folder, number, method = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    real = getattr(Path, method)
    def stop(path, *words, **more):
        global number
        if number == 0:
            print('ready', flush=True)
            time.sleep(600)
        number -= 1
        return real(path, *words, **more)
    setattr(Path, method, stop)
    write_beside([Job(folder / name, lambda file: file.write(b"new")) for name in ("a", "b", "c")])
"""


@pytest.mark.parametrize("renamings", range(5))
def test_a_process_killed_between_its_renamings_changes_nothing(tmp_path: Path, renamings: int) -> None:
    """Of a and b, which are replaced, and c, which is new, each renaming is the last one that is done."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"old")
    kill(begin(STOPS_RENAMING, tmp_path, renamings, "replace"))
    assert remove_abandoned(tmp_path) > 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old", "b": b"old"}


@pytest.mark.parametrize("removals", range(3))
def test_a_process_killed_after_its_renamings_has_done_its_work(tmp_path: Path, removals: int) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"old")
    kill(begin(STOPS_RENAMING, tmp_path, removals, "unlink"))
    remove_abandoned(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys("abc", b"new")


def test_a_disk_without_locks_is_written_to_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = [".a.12-00112233.0.part", ".sporelm-12-00112233.lock"]
    for name in stays:
        (tmp_path / name).write_bytes(b"x")

    def refuse(*words: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    if sys.platform == "win32":
        monkeypatch.setattr("msvcrt.locking", refuse)
    else:
        monkeypatch.setattr("fcntl.flock", refuse)
    write_beside([Job(tmp_path / "a", lambda file: file.write(b"new"))])
    assert names(tmp_path) == [*stays, "a"]


def test_a_lock_that_was_taken_for_abandoned_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, taken = file_lock.take, []

    def late(file) -> bool:
        if not taken:
            taken.append(remove_abandoned(tmp_path))  # another process, before the lock is held
        return real(file)

    monkeypatch.setattr(part_files, "take", late)
    with PartFiles() as unfinished:
        part = unfinished.path_for(tmp_path / "a")
        part.write_bytes(b"x")
        assert remove_abandoned(tmp_path) == 0
        assert len(names(tmp_path)) == 2
    assert names(tmp_path) == []


def test_only_names_of_ours_are_removed(tmp_path: Path) -> None:
    token = "12-00112233"
    ours = [f".sporelm-{token}.lock", f".m.gguf.{token}.0.part"]
    others = ["..part", f"m.{token}.0.part", f".m.{token}.part", ".m.1.0.part", ".sporelm-x.lock", "m.gguf.part"]
    for name in ours + others:
        (tmp_path / name).write_bytes(b"x")
    assert remove_abandoned(tmp_path) == 1
    assert names(tmp_path) == sorted(others)
    assert remove_abandoned(tmp_path / "missing") == 0


@pytest.mark.skipif(sys.platform == "win32", reason="files have no user number there")
def test_files_of_another_user_move_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that user could leave them in /tmp, to have a file of ours replaced."""
    token = "12-00112233"
    (tmp_path / "model.gguf").write_bytes(b"ours")
    for name in (f".sporelm-{token}.lock", f".x.{token}.0.part", f".model.gguf.{token}.old"):
        (tmp_path / name).write_bytes(b"theirs")
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert remove_abandoned(tmp_path) == 0
    assert (tmp_path / "model.gguf").read_bytes() == b"ours"
    monkeypatch.undo()
    assert remove_abandoned(tmp_path) == 2  # of files that are ours the same is done as ever
    assert (tmp_path / "model.gguf").read_bytes() == b"theirs"


HOLDS_SCRATCH = """
    from pathlib import Path
    from sporelm.files.store.folder_lock import make_scratch_folder
    held = make_scratch_folder(Path(sys.argv[1]), ".pull-")
    (held.__enter__() / "half.whl").write_bytes(b"x")
"""


def test_scratch_folders_of_killed_processes_go(tmp_path: Path) -> None:
    (tmp_path / ".pull-mine").mkdir()  # without a lock: not ours
    puller = begin(HOLDS_SCRATCH, tmp_path)
    try:
        with make_scratch_folder(tmp_path, ".pull-") as own:
            assert names(own) == [LOCK]
            assert len(names(tmp_path)) == 3
    finally:
        kill(puller)
    assert len(names(tmp_path)) == 2
    with make_scratch_folder(tmp_path, ".remove-"):
        assert len(names(tmp_path)) == 3
    with make_scratch_folder(tmp_path, ".pull-") as own:
        assert names(tmp_path) == sorted([own.name, ".pull-mine"])
    assert names(tmp_path) == [".pull-mine"]
