"""Sequences on disk: they come back as they were, and nothing else comes in."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sporelm.engine import Engine, KvSequence, Request
from sporelm.errors import MemoryShortage, ModelFileError, ModelNotFound, RequestError, SporeError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt


def begun(made: Engine, length: int = 150) -> KvSequence:
    sequence = made.sequence()
    made.run([made.add(Request(prompt(length), max_tokens=5, sequence=sequence))])
    return sequence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A session of 154 tokens."""
    made = engine()
    path = tmp_path / "talk.session"
    assert made.sleep(begun(made), path, "model a", {"who": "me"}) == path.stat().st_size
    return path


def test_what_was_written_is_there_again_elsewhere(file):
    other = engine(max_batch=2)
    other.run([other.add(Request(prompt(90, 5), max_tokens=5))])
    sequence, notes = other.wake(file, "model a")
    assert notes == {"who": "me"}
    known = [*prompt(150), *expected(prompt(150), 5)]
    assert sequence.tokens == known[:-1]
    again = other.add(Request([*known, 1], max_tokens=9, sequence=sequence))
    other.run([again])
    assert again.cached_tokens == 154
    assert again.generated == expected(again.prompt, 9)
    other.check_integrity()


def test_what_was_woken_is_a_prefix_for_others(file):
    made = engine()
    made.wake(file, "model a")
    request = made.add(Request([*prompt(150), 7], max_tokens=3))
    made.run([request])
    assert request.cached_tokens == 128
    assert request.generated == expected(request.prompt, 3)


def test_a_file_is_plain_safetensors_without_what_others_left(file):
    found = load_file(file)
    assert found["tokens"].tolist()[:150] == prompt(150)
    layer = found["layers.0"]
    assert layer.shape == (3, 2, 1, 64, 1)
    assert layer[:, 0].reshape(-1)[:154].tolist() == found["tokens"].tolist()
    assert not layer[:, 0].reshape(-1)[154:].any()


def test_an_empty_sequence_sleeps_too(tmp_path):
    made = engine()
    made.sleep(made.sequence(), tmp_path / "empty", "m", {})
    sequence, _ = made.wake(tmp_path / "empty", "m")
    assert sequence.length == 0
    made.check_integrity()


def rewrite(file: Path, **changes: object) -> None:
    """Change the metadata of a file, its data stays."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for key, value in changes.items():
        place = header["__metadata__"] if key in header["__metadata__"] else header[key.replace("_", ".")]
        if place is header["__metadata__"]:
            place[key] = value
        else:
            place.update(value)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "model b"}, RequestError, "session of another model"),
        ({"format": "pt"}, ModelFileError, "no session of version 1"),
        ({"version": "2"}, ModelFileError, "no session of version 1"),
        ({"sha256": "0" * 64}, ModelFileError, "its hash differs"),
        ({"notes": "[]"}, ModelFileError, "notes are no JSON object"),
        ({"notes": "{"}, ModelFileError, "notes are no JSON object"),
        ({"layers_0": {"shape": [3, 2, 64, 1, 1]}}, ModelFileError, "layers.0 is not"),
        ({"layers_0": {"dtype": "I32"}}, RequestError, "keys and values in I32"),
        ({"tokens": {"dtype": "F64"}}, ModelFileError, "no list of tokens"),
        ({"tokens": {"shape": [77, 2]}}, ModelFileError, "no list of tokens"),
    ],
)
def test_a_file_that_was_changed_is_refused_and_nothing_is_kept(file, changes, error, message):
    rewrite(file, **changes)
    made = engine()
    with pytest.raises(error, match=message):
        made.wake(file, "model a")
    assert made.store.pool.num_free == made.limits.num_pages
    assert not made.store.sequences


def test_no_change_of_a_byte_and_no_cut_goes_unseen(file):
    data = file.read_bytes()
    made = engine()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(data), 150).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        try:
            sequence, _ = made.wake(file, "model a")
        except SporeError:
            continue
        assert place < 1500  # white space of the header, or its notes
        made.drop(sequence)
    for length in (0, 5, 100, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            made.wake(file, "model a")
    made.check_integrity()
    with pytest.raises(ModelNotFound):
        made.wake(file.with_name("none"), "model a")


def test_what_does_not_fit_is_said(file):
    with pytest.raises(RequestError, match=r"154 tokens, the context 100: raise --max-context"):
        engine(max_context=100).wake(file, "model a")
    with pytest.raises(ModelFileError, match="tokens that the model does not know"):
        engine(vocab=50).wake(file, "model a")
    full = engine(num_pages=4)
    busy = full.add(Request(prompt(140, 3), max_tokens=50))
    for _ in range(5):
        full.step()
    with pytest.raises(MemoryShortage, match=r"needs 3 pages, 1 can be had"):
        full.wake(file, "model a")
    full.check_integrity()
    full.run([busy])


def test_a_sequence_in_use_does_not_sleep_and_a_bad_place_leaves_nothing(tmp_path):
    made = engine()
    sequence = begun(made, 20)
    with pytest.raises(RequestError, match="cannot be written"):
        made.sleep(sequence, tmp_path / "none" / "file", "m", {})
    with pytest.raises(RequestError, match="notes of a session have"):
        made.sleep(sequence, tmp_path / "file", "m", {"text": "x" * (1 << 23)})
    made.add(Request([*sequence.tokens, 1], max_tokens=5, sequence=sequence))
    made.step()
    with pytest.raises(RequestError, match="still uses this sequence"):
        made.sleep(sequence, tmp_path / "file", "m", {})
    assert not list(tmp_path.iterdir())
