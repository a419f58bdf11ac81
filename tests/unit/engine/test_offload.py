"""KV offload: evicted sequences are written to a folder and restored; answers stay right when files are lost."""

import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest

from sporelm.engine import Engine, KvSequence, Request
from sporelm.engine.kv import offload
from sporelm.engine.kv.offload import OffloadStore
from sporelm.errors import RequestError
from unit.engine.fake import FakeRunner, engine, expected, limits
from unit.engine.test_engine import prompt

PAGE_BYTES = 512  # of the fake model
OTHERS = count(100)


@pytest.fixture(name="made")
def offloading_engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine of 6 pages that offloads sequences to a folder."""
    made = engine_at(tmp_path / "asleep", num_pages=6, max_batch=3)
    yield made
    made.check_integrity()
    made.close()
    assert not list((tmp_path / "asleep").iterdir())


def engine_at(path: Path, max_bytes: int = 1 << 20, **changes: int) -> Engine:
    chosen = limits(**changes)
    runner = FakeRunner(chosen)
    return Engine(runner, chosen, offload_store=OffloadStore(path, runner, lambda: "model a", max_bytes))


def ask(made: Engine, sequence: KvSequence | None, ids: list[int], wanted: int = 5) -> Request:
    """Run one request; its answer must be right."""
    request = made.add(Request(ids, max_tokens=wanted, sequence=sequence))
    made.run([request])
    assert request.generated == expected(ids, wanted)
    return request


def start_sequence(made: Engine, seed: int = 0, length: int = 150) -> tuple[KvSequence, list[int]]:
    """Return a sequence, and its context."""
    sequence = made.sequence()
    return sequence, ask(made, sequence, prompt(length, seed)).context_ids


def crowd(made: Engine) -> None:
    """Use every page for other requests."""
    others = [made.add(Request(prompt(180, next(OTHERS)), max_tokens=10)) for _ in range(2)]
    made.run(others)
    settle(made)


def settle(made: Engine) -> OffloadStore:
    """Wait until all is written, and removed, that is to be."""
    folder = made.kv_cache.offload_store
    assert isinstance(folder, OffloadStore)
    folder._writer.submit(lambda: None).result()
    return folder


def files(made: Engine) -> list[Path]:
    return sorted(settle(made).folder.iterdir())


def test_what_gave_way_is_woken_and_not_computed(made):
    sequence, known = start_sequence(made)
    crowd(made)
    (file,) = files(made)
    assert sequence.length == 0
    assert made.kv_cache.is_offloaded(sequence)
    if os.name == "posix":
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    again = ask(made, sequence, [*known, 1], 9)
    assert (again.cached_tokens, again.cache_miss) == (154, None)
    assert not files(made)
    assert not made.kv_cache.is_offloaded(sequence)
    crowd(made)
    assert ask(made, sequence, [*again.context_ids, 2]).cached_tokens == 164


def test_without_a_folder_it_is_computed_again():
    made = engine(num_pages=6, max_batch=3)
    sequence = made.sequence()
    known = ask(made, sequence, prompt(150)).context_ids
    made.run([made.add(Request(prompt(180, next(OTHERS)), max_tokens=10)) for _ in range(2)])
    again = ask(made, sequence, [*known, 1])
    assert (again.cached_tokens, again.cache_miss) == (0, "evicted")


def test_pages_that_are_still_there_are_not_read_again(made):
    sequence, known = start_sequence(made)
    ask(made, None, prompt(240, next(OTHERS)))
    assert made.kv_cache.is_offloaded(sequence)
    assert ask(made, sequence, [*known, 1]).cached_tokens == 154


def test_short_sequences_do_not_sleep(made):
    sequence, known = start_sequence(made, length=100)
    crowd(made)
    assert not files(made)
    assert ask(made, sequence, [*known, 1]).cached_tokens == 0


def test_only_what_the_new_text_begins_with_is_woken(made):
    sequence, known = start_sequence(made)
    crowd(made)
    again = ask(made, sequence, [*known[:100], *prompt(60, 9)])
    assert again.cached_tokens == 100
    assert not files(made)


def test_a_wake_before_the_disk_has_it_takes_the_copy(made, monkeypatch):
    gate, write = threading.Event(), offload.write_session

    def slow(*given: object) -> object:
        assert gate.wait(60)
        return write(*given)

    monkeypatch.setattr(offload, "write_session", slow)
    sequence, known = start_sequence(made)
    made.run([made.add(Request(prompt(180, next(OTHERS)), max_tokens=10)) for _ in range(2)])
    assert ask(made, sequence, [*known, 1]).cached_tokens == 154
    gate.set()
    assert not files(made)


def test_while_others_run_the_file_is_read_beside_them(made, monkeypatch):
    gate, read = threading.Event(), offload.read_session

    def slow(*given: object) -> object:
        assert gate.wait(60)
        return read(*given)

    monkeypatch.setattr(offload, "read_session", slow)
    sequence, known = start_sequence(made)
    crowd(made)
    other = made.add(Request(prompt(10), max_tokens=60))
    made.step()
    waits = made.add(Request([*known, 1], max_tokens=5, sequence=sequence))
    for _ in range(8):
        made.step()
    assert (other.num_generated, waits.start_time) == (9, 0)
    gate.set()
    made.run([waits, other])
    assert (waits.cached_tokens, waits.generated) == (154, expected(waits.prompt, 5))
    assert other.generated == expected(other.prompt, 60)


def test_a_cancelled_request_leaves_it_asleep(made):
    sequence, known = start_sequence(made)
    crowd(made)
    busy = [made.add(Request(prompt(150, next(OTHERS)), max_tokens=20)) for _ in range(2)]
    for _ in range(8):
        made.step()
    waits = made.add(Request([*known, 1], max_tokens=5, sequence=sequence))
    made.step()
    made.cancel(waits)
    assert made.kv_cache.is_offloaded(sequence)
    made.run(busy)
    assert ask(made, sequence, [*known, 1]).cached_tokens == 154


def test_a_disk_that_does_not_take_it_loses_it_with_the_reason(made, monkeypatch):
    def full(*given: object) -> object:
        raise RequestError("talk.session cannot be written: no space left on device")

    monkeypatch.setattr(offload, "write_session", full)
    sequence, known = start_sequence(made)
    crowd(made)
    assert not files(made)
    again = ask(made, sequence, [*known, 1])
    assert (again.cached_tokens, again.cache_miss) == (0, "evicted")
    folder = settle(made)
    assert "no space left" in folder.last_loss
    assert (folder.counts.offloaded, folder.counts.restored, folder.counts.lost) == (1, 0, 1)


@pytest.mark.parametrize("harm", ["changed", "gone", "another's"])
def test_a_file_that_is_not_what_was_written_is_not_believed(made, harm):
    sequence, known = start_sequence(made)
    crowd(made)
    (file,) = files(made)
    if harm == "changed":
        data = bytearray(file.read_bytes())
        data[-600] ^= 1
        file.write_bytes(data)
    elif harm == "gone":
        file.unlink()
    else:  # a file that is whole, and of the same model
        other = engine()
        begun_there = other.sequence()
        ask(other, begun_there, prompt(150, 3))
        other.save_session(begun_there, file, "model a", {})
    again = ask(made, sequence, [*known, 1])
    assert (again.cached_tokens, again.cache_miss) == (0, "evicted")
    assert settle(made).last_loss.startswith(str(file))
    assert not files(made)


def test_the_longest_asleep_goes_when_the_folder_is_full(tmp_path):
    made = engine_at(tmp_path, 7 * PAGE_BYTES, num_pages=6, max_batch=3)
    sequences = []
    for seed in range(3):
        sequences.append(start_sequence(made, seed))
        crowd(made)
    assert [made.kv_cache.is_offloaded(sequence) for sequence, _ in sequences] == [False, True, True]
    assert len(files(made)) == 2
    cached = [ask(made, sequence, [*known, 1]).cached_tokens for sequence, known in reversed(sequences)]
    assert cached == [154, 154, 0]
    assert "more than session_bytes" in settle(made).last_loss
    tiny = engine_at(tmp_path / "tiny", PAGE_BYTES, num_pages=6, max_batch=3)
    sequence, _ = start_sequence(tiny)
    crowd(tiny)
    assert not tiny.kv_cache.is_offloaded(sequence)
    assert "larger than session_bytes" in settle(tiny).last_loss


def test_a_slow_disk_holds_no_memory_without_end(made, monkeypatch):
    monkeypatch.setattr(offload, "MAX_UNWRITTEN_BYTES", 2 * PAGE_BYTES)
    sequence, _ = start_sequence(made)
    crowd(made)
    assert not made.kv_cache.is_offloaded(sequence)
    assert "too slow" in settle(made).last_loss


def test_a_fork_of_what_sleeps_sleeps_too(made):
    sequence, known = start_sequence(made)
    crowd(made)
    child = made.fork(sequence)
    assert ask(made, child, [*known, 1]).cached_tokens == 154
    assert len(files(made)) == 1
    crowd(made)
    assert len(files(made)) == 2
    made.drop(child)
    assert len(files(made)) == 1
    assert ask(made, sequence, [*known, 2]).cached_tokens == 154


def test_dropping_removes_the_file(made):
    sequence, _ = start_sequence(made)
    crowd(made)
    made.drop(sequence)
    assert not files(made)


def test_what_sleeps_can_be_written_to_a_named_file(made, tmp_path):
    sequence, known = start_sequence(made)
    crowd(made)
    made.save_session(sequence, tmp_path / "named", "model a", {"who": "me"})
    woken, notes = made.load_session(tmp_path / "named", "model a")
    assert (woken.tokens, notes) == (known[:-1], {"who": "me"})
    made.drop(woken)


def test_nothing_is_woken_over_pages_that_are_still_to_be_copied(made):
    """A fork that goes on copies the page both write to; in that very step no sequence is restored."""
    sleeper, slept = start_sequence(made, length=130)
    crowd(made)
    source, known = start_sequence(made, 1, 70)
    child = made.fork(source)
    left = made.add(Request([*known, 1], max_tokens=4, sequence=source))
    right = made.add(Request([*known, 2], max_tokens=4, sequence=child))
    third = made.add(Request([*slept, 3], max_tokens=4, sequence=sleeper))
    made.run([left, right, third])
    for request in (left, right, third):
        assert request.generated == expected(request.prompt, 4)
    assert any(step.copies for step in made.runner.steps)
    assert third.cached_tokens == 134


def test_stale_files_of_dead_processes_are_removed_and_no_others(tmp_path):
    old, new = f"sporelm-{'a' * 32}.session", f"sporelm-{'b' * 32}.session"
    part, lock = (
        f".sporelm-{'c' * 32}.session.12-00112233.3.part",
        ".sporelm-12-00112233.lock",
    )  # which no process holds
    names = [old, new, part, lock, "mine.session", "sporelm-notes.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
        if name != new:
            os.utime(tmp_path / name, (time() - 2 * 86400,) * 2)
    engine_at(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {new, "mine.session", "sporelm-notes.txt"}


def test_a_living_process_touches_its_files(made, monkeypatch):
    monkeypatch.setattr(offload, "TOUCH_SECONDS", -1.0)
    start_sequence(made)
    crowd(made)
    (file,) = files(made)
    os.utime(file, (1, 1))
    start_sequence(made, 1)
    crowd(made)
    assert file.stat().st_mtime > 1


def test_a_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"session_dir .* cannot be used"):
        engine_at(tmp_path / "file")
    with pytest.raises(RequestError, match="session_bytes: too small"):
        engine_at(tmp_path / "other", 0)


@pytest.mark.parametrize("seed", range(3))
def test_random_turns_among_more_conversations_than_pages(tmp_path, monkeypatch, seed):
    """Conversations take turns, are forked, go back and are dropped; every answer is right, and no page is lost."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    made, rng = engine_at(tmp_path, 20 * PAGE_BYTES, num_pages=9, max_batch=3), np.random.default_rng(seed)
    talks = [start_sequence(made, number) for number in range(4)]
    for turn in range(60):
        chosen = rng.permutation(len(talks))[: rng.integers(1, 4)].tolist()
        requests = []
        for number in chosen:
            sequence, known = talks[number]
            keep = int(rng.integers(1, len(known) + 1)) if rng.random() < 0.3 else len(known)
            ids = [*known[: min(keep, 200)], *rng.integers(0, 90, int(rng.integers(1, 30))).tolist()]
            requests.append(made.add(Request(ids, max_tokens=int(rng.integers(1, 20)), sequence=sequence)))
            talks[number] = (sequence, requests[-1].context_ids)
        made.run(requests)
        for request in requests:
            assert request.generated == expected(request.prompt, request.num_generated)
        if turn % 7 == 3:
            source, known = talks[int(rng.integers(len(talks)))]
            talks.append((made.fork(source), list(known)))
        elif turn % 7 == 6:
            made.drop(talks.pop(int(rng.integers(len(talks))))[0])
        made.check_integrity()
    assert settle(made).counts.restored > 5
    made.close()
    assert not list(tmp_path.iterdir())


class VanishingEntry(offload.OffloadEntry):
    """The reader, which found the file damaged, removes the prefetch as soon as it was read once."""

    @property
    def prefetch(self) -> Any:
        future, self._future = self._future, None
        return future

    @prefetch.setter
    def prefetch(self, value: Any) -> None:
        self._future = value


@pytest.mark.parametrize("how", ["is_ready", "load"])
def test_a_file_that_is_found_damaged_meanwhile_is_lost_and_nothing_else(how, tmp_path, monkeypatch):
    made = engine_at(tmp_path, num_pages=6, max_batch=3)
    sequence, known = start_sequence(made)
    monkeypatch.setattr(offload, "OffloadEntry", VanishingEntry)
    crowd(made)
    folder = settle(made)
    files(made)[0].unlink()
    folder._entries[sequence.id].prefetch = folder._reader.submit(lambda: None)
    assert getattr(folder, how)(sequence) in (True, False, None)
    folder._reader.submit(lambda: None).result()
    assert ask(made, sequence, [*known, 1]).cached_tokens == 0
    made.close()
