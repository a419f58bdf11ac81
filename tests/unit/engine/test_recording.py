"""Test what a recording holds and what a replay refuses; `test_trace_and_record.py` replays runs of a model."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sporelm.engine import Sampling
from sporelm.engine.recording import MARK, RecordingFile, checksums, sampling_from_json, sampling_to_json
from sporelm.engine.recording_replay import Recording, Replay, check_step
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RequestError
from unit.engine.fake import limits


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_k=40, top_p=0.1 + 0.2, seed=(1 << 64) - 1, logprobs=3),
        Sampling(logit_bias={17: -1.5, 3: 100.0}, dry_breakers=frozenset({5, 1}), dry_multiplier=0.8),
    ],
)
def test_sampling_comes_back_as_it_was(sampling):
    values = json.loads(json.dumps(sampling_to_json(sampling)))
    assert sampling_from_json(values) == sampling
    assert sampling_to_json(Sampling()) == {}


def test_sampling_of_another_version_is_refused():
    with pytest.raises(RequestError, match="no sampling value 'top_z'"):
        sampling_from_json({"top_z": 1})
    with pytest.raises(RequestError, match="temperature is -1"):
        sampling_from_json({"temperature": -1})


def test_a_checksum_sees_every_bit():
    rows = np.random.default_rng(3).standard_normal((3, 131)).astype(np.float32)
    sums = checksums(rows)
    assert all(0 <= number < 1 << 64 for number in sums)
    for place in (0, 64, 130):
        for bit in (0, 13, 31):
            changed = rows.copy()
            changed.view(np.uint32)[1, place] ^= np.uint32(1 << bit)
            found = checksums(changed)
            assert (found[0], found[2]) == (sums[0], sums[2])
            assert found[1] != sums[1]
    assert checksums(rows[:0]) == []


def new_recording(path: Path, **more: Any) -> RecordingFile:
    file = RecordingFile(path, **more)
    file.line({MARK: 1, "limits": {}})
    return file


def test_lines_end_where_the_file_was_cut(tmp_path):
    path = tmp_path / "r.jsonl"
    file = new_recording(path)
    for number in range(3):
        file.line({"drop": number})
    file.close()
    text = path.read_text(encoding="ascii")
    path.write_text(text[:-5], encoding="ascii")  # killed while it wrote
    recording = Recording(path)
    assert [line for _, line in recording.lines()] == [{"drop": 0}, {"drop": 1}]
    assert recording.is_truncated


def test_a_full_recording_says_so(tmp_path):
    path = tmp_path / "r.jsonl"
    file = new_recording(path, max_bytes=100)
    for number in range(50):
        file.line({"drop": number})
    file.close()
    assert file.failure is not None
    assert "as many as it may have" in file.failure
    *_, (_, last) = Recording(path).lines()
    assert list(last) == ["full"]
    assert path.stat().st_size < 150


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_a_recording_is_for_its_owner(tmp_path):
    new_recording(tmp_path / "r.jsonl").close()
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o077 == 0


def test_a_recording_takes_the_place_of_an_earlier_one_only(tmp_path):
    path = tmp_path / "r.jsonl"
    new_recording(path).close()
    new_recording(path).close()
    RecordingFile(tmp_path / "unused.jsonl").close()
    assert [each.name for each in tmp_path.iterdir()] == ["r.jsonl"]
    path.write_text("notes", encoding="utf-8")
    with pytest.raises(RequestError, match="exists and is not a recording"):
        RecordingFile(path)
    with pytest.raises(RequestError, match="cannot be written"):
        RecordingFile(tmp_path / "none" / "r.jsonl")
    assert path.read_text(encoding="utf-8") == "notes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a recording"),
        ("GGUF\n", "is not a recording"),
        ("[1]\n", "is not a recording"),
        ('{"sporelm recording": 3}\n', "of version 3; this program knows 2"),
        ('{"sporelm recording": 1}\n', "does not say the limits"),
        ('{"sporelm recording": 1, "limits": {"max_context": 3}}\n', "does not say the limits"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=message):
        _ = Recording(path).limits


def test_a_step_with_an_adapter_ends_the_replay(tmp_path):
    path = tmp_path / "r.jsonl"
    file = new_recording(path)
    step = Step([GOOD._replace(adapter_id=2)], [])
    file.line({"step": step.to_json(), "best": [1], "logits": [1], "s": 0.1})
    file.close()
    worker = SimpleNamespace(limits=limits(), missing_adapter=lambda step: step.sequences[0].adapter_id)
    result = Replay(Recording(path), worker).run()  # type: ignore[arg-type]
    assert result.stopped is not None
    assert result.stopped.startswith("step 1 uses adapter 2, which a recording does not hold: load")
    assert result.steps == 0


GOOD = ScheduledSequence(1, [5, 6], 63, (3, 4), 1)


@pytest.mark.parametrize(
    "step",
    [
        Step([], []),
        Step([GOOD] * 5, []),  # the fake's batch is 4
        Step([GOOD._replace(tokens=[1] * 49)], []),
        Step([GOOD._replace(tokens=[97, 1])], []),
        Step([GOOD._replace(tokens=[-1, 1])], []),
        Step([GOOD._replace(tokens=[True, 1])], []),
        Step([GOOD._replace(tokens=[])], []),
        Step([GOOD._replace(position=-1)], []),
        Step([GOOD._replace(position=255, page_table=(0, 1, 2, 3))], []),
        Step([GOOD._replace(page_table=(3,))], []),
        Step([GOOD._replace(page_table=(3, 24))], []),
        Step([GOOD._replace(page_table=(3, -1))], []),
        Step([GOOD._replace(page_table=(0,) * 5)], []),
        Step([GOOD._replace(num_outputs=3)], []),
        Step([GOOD._replace(num_outputs=-1)], []),
        Step([GOOD._replace(num_outputs=1.0)], []),  # type: ignore[arg-type]
        Step([GOOD], [(0, 24)]),
        Step([GOOD], [(-1, 2)]),
    ],
)
def test_steps_that_would_reach_beyond_the_memory_are_refused(step):
    check_step(Step([GOOD], [(0, 23)]), limits())
    with pytest.raises(RequestError):
        check_step(step, limits())


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has modes of files")
def test_others_cannot_read_what_takes_the_place_of_a_file_that_they_could(tmp_path):
    path = tmp_path / "r.jsonl"
    path.touch()
    path.chmod(0o644)
    file = RecordingFile(path)
    file.line({MARK: 1})
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600
