"""Partial files of a killed server are removed, and nothing else."""

from pathlib import Path

from sporelm.files.part_files import PartFiles
from sporelm.serve.temp_cleanup import remove_partial_files

TOKEN = "12-00112233"


def test_partial_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    goes = {
        f"sessions/.a.session.{TOKEN}.0.part": True,
        f"sessions/.sporelm-{TOKEN}.lock": True,
        f"conversations/0f/.b.json.{TOKEN}.1.part": True,
        f"conversations/0f/.sporelm-{TOKEN}.lock": True,
        f"conversations/0f/images/.c.png.{TOKEN}.1.part": True,
        f"conversations/0f/images/.sporelm-{TOKEN}.lock": True,
        "conversations/0f/images/c.png": False,
        "sessions/a.session": False,
        "sessions/a.part": False,
        "sessions/.c.session.13-00112233.0.part": False,  # without a lock file its process is unknown
        "conversations/0f/b.json": False,
        "conversations/0f/.lock": False,
        f"elsewhere/.c.{TOKEN}.2.part": False,
    }
    for name in goes:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    folders = [tmp_path / name for name in ("sessions", "conversations", "missing")]
    with PartFiles() as other:  # another server writes now
        fresh = other.path_for(tmp_path / "sessions" / "d.session")
        fresh.write_text("x")
        for name in goes:  # what was there was removed at the first path_for of this process
            (tmp_path / name).write_text("x")
        assert remove_partial_files(folders) == 3
        assert {name: not (tmp_path / name).exists() for name in goes} == goes
        assert fresh.exists()
        assert remove_partial_files(folders) == 0
    assert not fresh.exists()
