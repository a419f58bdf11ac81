"""What a server that was killed has left half-written goes; nothing else does."""

from pathlib import Path

from sporelm.serve.leftovers import clear_leftovers
from sporelm.weights.part_files import PartFiles

TOKEN = "12-00112233"


def test_parts_whose_server_is_gone_are_removed_and_nothing_else(tmp_path: Path) -> None:
    goes = {
        f"sessions/.a.session.{TOKEN}.0.part": True,
        f"sessions/.sporelm-{TOKEN}.lock": True,
        f"conversations/0f/.b.json.{TOKEN}.1.part": True,
        f"conversations/0f/.sporelm-{TOKEN}.lock": True,
        "sessions/a.session": False,
        "sessions/a.part": False,
        "sessions/.c.session.13-00112233.0.part": False,  # without a lock file nobody knows whose it is
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
        assert clear_leftovers(folders) == 2
        assert {name: not (tmp_path / name).exists() for name in goes} == goes
        assert fresh.exists()
        assert clear_leftovers(folders) == 0
    assert not fresh.exists()
