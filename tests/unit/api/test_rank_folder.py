"""Folders of groups are removed with their process, and not before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sporelm.api.rank_folder import FOLDER_PREFIX, RankFolder
from system.processes import environment

if sys.platform == "win32":
    pytest.skip("folders cannot be locked", allow_module_level=True)


def test_a_folder_is_private_and_removed_at_its_end(tmp_path: Path) -> None:
    folder = RankFolder.create(tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "file").touch()
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_running_processes_stay_whatever_their_ids_are(tmp_path: Path) -> None:
    folder = RankFolder.create(tmp_path)
    unknown = tmp_path / f"{FOLDER_PREFIX}{2**30}-x"  # as a process of another container looks from here
    folder.path.rename(unknown)
    other = RankFolder.create(tmp_path)
    assert unknown.exists()
    other.close()
    folder.path = unknown
    folder.close()


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from sporelm.api.rank_folder import RankFolder; "
        f"folder = RankFolder.create(pathlib.Path({str(tmp_path)!r})); (folder.path / 'file').touch(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    reused = left.rename(tmp_path / f"{FOLDER_PREFIX}{os.getpid()}-x")  # the id was given again
    RankFolder.create(tmp_path).close()
    assert not reused.exists()
