"""What a server that was killed has left half-written goes; nothing else does."""

import os
import time
from pathlib import Path

from sporelm.serve.leftovers import STALE, clear_leftovers


def test_stale_parts_go_and_nothing_else(tmp_path: Path) -> None:
    names = {
        "sessions/.a.session.12.0.part": True,
        "conversations/0f/.b.12.aabb.part": True,
        "sessions/a.session": False,
        "sessions/a.part": False,
        "conversations/0f/b.json": False,
        "conversations/0f/.lock": False,
        "elsewhere/.c.1.2.part": False,
    }
    old = time.time() - STALE - 60
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (old, old))
    fresh = tmp_path / "sessions" / ".d.session.13.1.part"
    fresh.write_text("x")  # another server writes it now
    folders = [tmp_path / name for name in ("sessions", "conversations", "missing")]
    assert clear_leftovers(folders) == 2
    assert {name: not (tmp_path / name).exists() for name in names} == names
    assert fresh.exists()
    assert clear_leftovers(folders) == 0
