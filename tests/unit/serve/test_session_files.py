"""Files of sessions: their names, and which of them go."""

import os
from pathlib import Path

from sporelm.serve.sessions.session_pool import SessionName, write_session


class Note:
    """As much of a conversation as is written."""

    def save(self, path: Path) -> int:
        return path.write_bytes(b"x")


def test_of_too_many_files_the_oldest_of_the_largest_owner_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    names = [SessionName(*parts) for parts in (("ben", "m", "0"), *(("anna", "m", str(n)) for n in range(4)))]
    for age, name in enumerate(names):
        write_session(Note(), folder, name.file, 3)  # type: ignore[arg-type]
        os.utime(folder / name.file, (age, age))
    kept = {path.name for path in folder.iterdir()}
    assert kept == {names[0].file, names[3].file, names[4].file}


def test_file_names_reveal_neither_key_nor_session() -> None:
    name = SessionName("anna", "model", "../x")
    assert set(name.file) <= set("0123456789abcdef-.session")
    others = [name._replace(owner="ann", model="amodel"), name._replace(id="x"), name._replace(owner="ben")]
    assert len({each.file for each in (name, *others)}) == 4
