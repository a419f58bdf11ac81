"""Sequences on disk: they come back as they were, and nothing else comes in."""

import json
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from sporelm.engine import Engine, KvSequence, Request
from sporelm.engine.kv.session_io import SessionData, check_replaceable, read_session
from sporelm.engine.prompt_images import IMAGE_IDS
from sporelm.errors import MemoryShortage, ModelFileError, ModelNotFound, RequestError, SporeError
from unit.engine.fake import engine, expected
from unit.engine.test_engine import prompt


def start_sequence(made: Engine, length: int = 150) -> KvSequence:
    sequence = made.sequence()
    made.run([made.add(Request(prompt(length), max_tokens=5, sequence=sequence))])
    return sequence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A session of 154 tokens."""
    made = engine()
    path = tmp_path / "talk.session"
    assert made.save_session(start_sequence(made), path, "model a", {"who": "me"}) == path.stat().st_size
    return path


def test_what_was_written_is_there_again_elsewhere(file):
    other = engine(max_batch=2)
    other.run([other.add(Request(prompt(90, 5), max_tokens=5))])
    sequence, notes = other.load_session(file, "model a")
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
    made.load_session(file, "model a")
    request = made.add(Request([*prompt(150), 7], max_tokens=3))
    made.run([request])
    assert request.cached_tokens == 128
    assert request.generated == expected(request.prompt, 3)


def test_others_go_on_while_a_file_is_read(file, monkeypatch):
    made = engine()
    request = made.add(Request(prompt(20), max_tokens=3))

    def slowly(*given: Any) -> SessionData:
        other = Thread(target=made.run, args=([request],))
        other.start()
        other.join(60)
        return read_session(*given)

    monkeypatch.setattr("sporelm.engine.engine.read_session", slowly)
    sequence, _ = made.load_session(file, "model a")
    assert request.generated == expected(prompt(20), 3)
    assert sequence.length == 154
    made.check_integrity()


def test_a_file_is_plain_safetensors_without_what_others_left(file):
    found = load_file(file)
    assert found["tokens"].tolist()[:150] == prompt(150)
    layer = found["layers.0"]
    assert layer.shape == (3, 2, 1, 64, 1)
    assert layer[:, 0].reshape(-1)[:154].tolist() == found["tokens"].tolist()
    assert not layer[:, 0].reshape(-1)[154:].any()


def test_an_empty_sequence_sleeps_too(tmp_path):
    made = engine()
    made.save_session(made.sequence(), tmp_path / "empty", "m", {})
    sequence, _ = made.load_session(tmp_path / "empty", "m")
    assert sequence.length == 0
    made.check_integrity()


def rewrite(file: Path, *, honest: bool = True, **changes: object) -> None:
    """Change the header of a file, its data stays; unless `honest` the hash is computed again, as a forger would."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    known = header["__metadata__"]
    for key, value in changes.items():
        if key in known:
            known[key] = value
        elif value is None:
            del header[key.replace("_", ".")]
        else:
            header.setdefault(key.replace("_", "."), {}).update(value)
    if not honest:
        texts = [known[key].encode() for key in ("model", "notes")]
        digest = sha256(b"".join(len(text).to_bytes(8, "little") + text for text in texts))
        digest.update(data[8 + length :])
        known["sha256"] = digest.hexdigest()
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def version_of(file: Path) -> str:
    with safe_open(file, "numpy") as tensors:
        return tensors.metadata()["version"]


def test_files_with_pictures_have_a_version_of_their_own_and_are_read_with_the_earlier_one(tmp_path: Path) -> None:
    made, path = engine(), tmp_path / "talk.session"
    sequence = start_sequence(made)
    made.save_session(sequence, path, "m", {})
    assert version_of(path) == "1"
    made.save_session(sequence, path, "m", {}, [b"a picture"])
    assert version_of(path) == "3"
    sequence.tokens[3] = IMAGE_IDS + 5
    made.save_session(sequence, path, "m", {})
    assert version_of(path) == "3"
    for version in ("3", "1"):
        rewrite(path, version=version)
        assert version_of(path) == version
        loaded, _ = made.load_session(path, "m")
        assert loaded.tokens == sequence.tokens
    rewrite(path, version="4")
    with pytest.raises(ModelFileError, match=r"not a session file of version 1 or 3 \(got .*, version '4'\)"):
        made.load_session(path, "m")


def refused(file: Path, error: type[SporeError], message: str, **changes: int) -> None:
    made = engine(**changes)
    with pytest.raises(error, match=message) as caught:
        made.load_session(file, "model a")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert made.kv_cache.pages.num_free == made.limits.num_pages
    assert not made.kv_cache.sequences


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "model b"}, RequestError, "session of another model"),
        ({"format": "pt"}, ModelFileError, "not a session file of version 1"),
        ({"version": "2"}, ModelFileError, "not a session file of version 1"),
        ({"sha256": "0" * 64}, ModelFileError, "its hash differs"),
        ({"sha256": ""}, ModelFileError, "its hash differs"),
        ({"notes": '{"who": "you"}'}, ModelFileError, "its hash differs"),
        ({"notes": 3}, ModelFileError, "must map strings to strings"),
        ({"layers_0": {"shape": [3, 2, 64, 1, 1]}}, ModelFileError, "layers.0 is not"),
        ({"layers_0": {"shape": [1 << 62, 2, 1, 64, 1]}}, ModelFileError, "layers.0"),
        ({"layers_0": {"shape": [3, 2, 1, 64, -1]}}, ModelFileError, "shape must be a list"),
        ({"layers_0": {"shape": "no"}}, ModelFileError, "shape must be a list"),
        ({"layers_0": {"dtype": "I32"}}, ModelFileError, "keys and values of layer 0 are missing"),
        ({"layers_0": {"dtype": "F16", "shape": [3, 2, 1, 64, 2]}}, RequestError, "with the option kv set to f16"),
        ({"layers_0": {"dtype": "U8", "shape": [3, 2, 1, 64, 4]}}, RequestError, "with the option kv set to q8_0"),
        ({"layers_0": {"dtype": "X1"}}, ModelFileError, "dtype 'X1'"),
        ({"layers_0": {"data_offsets": [0, 1536]}}, ModelFileError, "overlap"),
        ({"layers_0": {"data_offsets": [1232, 1 << 60]}}, ModelFileError, "truncated or damaged"),
        ({"layers_0": {"data_offsets": [1 << 70, 1 << 71]}}, ModelFileError, "data_offsets must be"),
        ({"layers_0": None}, ModelFileError, "keys and values of layer 0 are missing"),
        ({"layers_1": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, ModelFileError, "3 tensors; expected 2"),
        ({"tokens": {"dtype": "F64"}}, ModelFileError, "list of tokens is missing"),
        ({"tokens": {"shape": [77, 2]}}, ModelFileError, "list of tokens is missing"),
        ({"tokens": {"shape": [1 << 40], "data_offsets": [0, 1 << 43]}}, ModelFileError, "truncated or damaged"),
        ({"tokens": None}, ModelFileError, "list of tokens is missing"),
        ({"tokens": {"shape": [0], "data_offsets": [0, 0]}}, ModelFileError, r"layers.0 is not \[0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("honest", [True, False])
def test_a_file_that_was_changed_is_refused_and_nothing_is_kept(file, changes, error, message, honest):
    rewrite(file, honest=honest or bool({"sha256", "notes"} & changes.keys()), **changes)
    refused(file, error, message)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("[]", "notes are not a JSON object"),
        ("{", "notes are not a JSON object"),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "notes are not a JSON object"),
        ('{"a":' + "9" * 100_000 + "}", "notes are not a JSON object"),
        (json.dumps({"text": "x" * (1 << 23)}), "notes have 8388"),
    ],
    ids=["a list", "cut", "deep", "a long number", "large"],
)
def test_invalid_notes_are_refused(file, notes, message):
    rewrite(file, honest=False, notes=notes)
    refused(file, ModelFileError, message)


def test_a_header_larger_than_ours_is_not_read(file):
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    more = 18 << 20
    file.write_bytes((length + more).to_bytes(8, "little") + data[8 : 8 + length] + b" " * more + data[8 + length :])
    refused(file, ModelFileError, r"header too large")
    refused(file.parent, ModelFileError, "is a folder")


def test_an_unknown_token_is_found_though_the_hash_fits(file):
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start : start + 8] = (-1).to_bytes(8, "little", signed=True)
    file.write_bytes(data)
    rewrite(file, honest=False)
    refused(file, ModelFileError, "tokens outside the model's vocabulary")


def test_idle_sequences_give_way_to_one_that_wakes(file):
    made = engine(num_pages=4)
    idle = start_sequence(made)
    sequence, _ = made.load_session(file, "model a")
    assert (idle.length, sequence.length) == (0, 154)
    made.check_integrity()


def test_no_change_of_a_byte_and_no_cut_goes_unseen(file):
    data = file.read_bytes()
    made = engine()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(data), 150).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        try:
            sequence, _ = made.load_session(file, "model a")
        except SporeError:
            continue
        assert place < 1500  # white space of the header
        made.drop(sequence)
    for length in (0, 5, 100, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            made.load_session(file, "model a")
    made.check_integrity()
    with pytest.raises(ModelNotFound):
        made.load_session(file.with_name("none"), "model a")


def test_what_does_not_fit_is_said(file):
    with pytest.raises(RequestError, match=r"got 154 tokens; the context holds 100\). Raise the option max_context"):
        engine(max_context=100).load_session(file, "model a")
    with pytest.raises(ModelFileError, match="tokens outside the model's vocabulary"):
        engine(vocab=50).load_session(file, "model a")
    full = engine(num_pages=4)
    busy = full.add(Request(prompt(140, 3), max_tokens=50))
    for _ in range(5):
        full.step()
    with pytest.raises(MemoryShortage, match=r"needs 3 pages, 1 are available"):
        full.load_session(file, "model a")
    full.check_integrity()
    full.run([busy])


def test_a_sequence_in_use_does_not_sleep_and_a_bad_place_leaves_nothing(tmp_path):
    made = engine()
    sequence = start_sequence(made, 20)
    with pytest.raises(RequestError, match="cannot be written"):
        made.save_session(sequence, tmp_path / "none" / "file", "m", {})
    with pytest.raises(RequestError, match="session notes: too large"):
        made.save_session(sequence, tmp_path / "file", "m", {"text": "x" * (1 << 23)})
    made.add(Request([*sequence.tokens, 1], max_tokens=5, sequence=sequence))
    made.step()
    with pytest.raises(RequestError, match="still uses this sequence"):
        made.save_session(sequence, tmp_path / "file", "m", {})
    assert not list(tmp_path.iterdir())


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    mine, empty, folder = tmp_path / "mine", tmp_path / "empty", tmp_path / "folder"
    mine.write_text("mine")
    empty.touch()
    folder.mkdir()
    for path in (mine, folder):
        with pytest.raises(RequestError, match="exists and is not a session file, so it is not overwritten"):
            check_replaceable(path)
    check_replaceable(empty)
    check_replaceable(tmp_path / "new")
