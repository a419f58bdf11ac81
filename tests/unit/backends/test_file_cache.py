"""The folder of compiled code: damage, its size, its owner, and several processes that write at once."""

import os
import stat
from pathlib import Path

import pytest

from sporelm.backends.file_cache import DIGEST_BYTES, ObjectCache

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="file owners and modes are POSIX")


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "kernels")


@pytest.mark.parametrize("damage", [b"", b"x", b"#!/bin/sh\n" * 9])
def test_a_damaged_file_is_not_read(cache: ObjectCache, damage: bytes) -> None:
    cache.put("k", b"code")
    assert cache.get("k") == b"code"
    cache.path("k").write_bytes(damage)
    assert cache.get("k") is None


def test_the_oldest_files_go_when_the_folder_outgrows_its_limit(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels", limit=10 * (1000 + DIGEST_BYTES))
    for number in range(10):
        cache.put(f"k{number}", bytes(1000))
        os.utime(cache.path(f"k{number}"), (number, number))
    assert len(cache.entries()) == 10
    assert cache.get("k0") is not None  # used now: no longer the oldest
    cache.put("new", bytes(1000))
    kept = {path.stem for _, _, path in cache.entries()}
    # down to seven eighths, so that not every file that follows makes the folder be looked through
    assert kept == {"k0", *(f"k{number}" for number in range(4, 10)), "new"}
    cache.put("large", bytes(5000))
    assert sum(size for _, size, _ in cache.entries()) <= cache.limit
    assert cache.get("large") is not None


def test_what_was_just_compiled_stays_however_small_the_limit(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels", limit=0)
    for name in ("first", "second"):
        cache.put(name, bytes(1000))
    assert cache.get("second") == bytes(1000)
    assert len(cache.entries()) == 1


def test_files_that_a_killed_process_left_go_after_an_hour(cache: ObjectCache) -> None:
    old, new = cache.folder / "old.part", cache.folder / "new.part"
    for path in (old, new):
        path.write_bytes(bytes(1000))
    os.utime(old, (1, 1))
    cache.put("k", b"code")
    assert not old.exists()
    assert new.exists(), "its process may still be writing it"


def test_no_part_files_are_left(cache: ObjectCache) -> None:
    for number in range(5):
        cache.put(f"k{number}", b"code")
    assert sorted(path.suffix for path in cache.folder.iterdir()) == [".o"] * 5


@posix
def test_the_folder_is_made_private(cache: ObjectCache) -> None:
    assert cache.refusal is None
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    cache.put("k", b"code")
    assert stat.S_IMODE(cache.path("k").stat().st_mode) & 0o077 == 0


@posix
@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_folder_open_to_others_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "kernels"
    ObjectCache(folder).put("k", b"planted")
    folder.chmod(mode)
    cache = ObjectCache(folder)
    assert cache.refusal is not None
    assert f"{mode:04o}" in cache.refusal
    assert "0700" in cache.refusal
    assert cache.get("k") is None
    cache.put("other", b"code")
    assert not cache.path("other").exists()


@posix
def test_another_users_folder_is_not_used(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("k", b"planted")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    other = ObjectCache(cache.folder)
    assert other.refusal is not None
    assert f"belongs to user {owner}" in other.refusal
    assert other.get("k") is None


@posix
def test_a_link_to_a_folder_is_not_followed(tmp_path: Path, cache: ObjectCache) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache.folder, target_is_directory=True)
    refusal = ObjectCache(link).refusal
    assert refusal is not None
    assert "not a folder" in refusal
