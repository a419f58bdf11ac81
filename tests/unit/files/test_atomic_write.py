"""Files that are put at their places: links stay, and a place that is taken meanwhile is not overwritten."""

import os
import sys
from pathlib import Path
from threading import Barrier, Thread
from types import FrameType
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.files import atomic_write, part_files
from sporelm.files.atomic_write import Job, write_beside

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@needs_links
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    target, link = tmp_path / "blobs" / "a", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("blobs/a")
    write_beside([Job(link, lambda file: file.write(b"new"))])
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "blobs", "link"]


@needs_links
def test_a_link_is_not_a_free_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(RequestError, match="is there already"):
        write_beside([Job(tmp_path / "link", lambda file: file.write(b"new"))], replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("has_links", [True, False])
def test_one_of_several_writers_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", raise_permission_error)
    place, begun, done, refused = tmp_path / "a", Barrier(4), [], []

    def write(number: int) -> None:
        def fill(file) -> None:
            file.write(bytes([number]))
            begun.wait(60)  # all have looked, all write

        try:
            write_beside([Job(place, fill)], replace=False)
            done.append(number)
        except RequestError as reason:
            refused.append(str(reason))

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert place.read_bytes() == bytes(done)
    assert all("nothing was overwritten" in reason for reason in refused)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_all_new_files_or_none(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"old")
    jobs = [Job(tmp_path / name, lambda file: file.write(b"new")) for name in "ab"]
    with pytest.raises(RequestError, match="b is there already"):
        write_beside(jobs, replace=False)
    assert (tmp_path / "b").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def raise_permission_error(*words: object) -> None:
    raise PermissionError("no links on this disk")


class Interrupt:
    """A profile function that raises KeyboardInterrupt once, at the given point. Points are where Python handles
    signals: entries of functions in these modules, and returns of built-in functions."""

    def __init__(self, point: int) -> None:
        self.points_left = point

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        is_ours = frame.f_code.co_filename in (atomic_write.__file__, part_files.__file__)
        if is_ours and event in ("call", "c_return"):
            self.points_left -= 1
            if self.points_left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


# A file that was opened, but has no name yet, is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("replace", "has_links"), [(True, True), (False, True), (False, False)])
def test_an_interrupt_at_any_point_leaves_all_new_files_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", raise_permission_error)
    monkeypatch.setattr(os, "fsync", lambda number: None)  # for speed
    names, outcomes = ("a", "b"), []
    for point in range(2, 1000):
        folder = tmp_path / str(point)
        folder.mkdir()
        if replace:
            for name in names:
                (folder / name).write_bytes(b"old")
        before = {name: b"old" for name in names if replace}
        jobs = [Job(folder / name, lambda file: file.write(b"new")) for name in names]
        sys.setprofile(Interrupt(point))
        try:
            write_beside(jobs, replace=replace)
            is_interrupted = False
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            sys.setprofile(None)
        found = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert found in (before, dict.fromkeys(names, b"new")), f"interrupted at point {point}"
        outcomes.append(found == before)
        if not is_interrupted:
            break
    assert not is_interrupted
    assert True in outcomes
    assert not outcomes[-1]


def test_a_file_that_cannot_be_moved_back_comes_back_with_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a", "b")
    for name in names:
        (tmp_path / name).write_bytes(b"old")
    move = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.name.endswith(".old") or target == tmp_path / "b":
            raise PermissionError("a scanner has opened it")
        return move(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(RequestError, match="cannot be written"):
            write_beside([Job(tmp_path / name, lambda file: file.write(b"new")) for name in names])
    assert part_files.remove_abandoned(tmp_path) > 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(names, b"old")
