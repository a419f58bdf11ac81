"""Every fault is found and named, several at once too; a sound file has none."""

from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest

from gguf_samples import entry_position, patch, patch_entry, sample, splits, stored, values_of
from sporelm.errors import ModelNotFound, RequestError
from sporelm.files.gguf import GgufWriter
from sporelm.quant import Q4_1, Q8_0
from sporelm.tools.diagnostics import ERROR, NOTE, WARNING, Diagnostic
from sporelm.tools.hashes import format_hash_list, read_hash_list
from sporelm.tools.verify import verify_model
from tiny_files import gguf_weights, write_folder, write_gguf
from tiny_models import LLAMA, Tiny

TINY = Tiny("llama", LLAMA, 11)


def bad(path: Path, **options: Any) -> list[Diagnostic]:
    """Errors and warnings."""
    return [finding for finding in verify_model(path, **options).findings if finding.level != NOTE]


@pytest.mark.parametrize("order", ["little", "big"])
def test_sound_files_have_no_findings(tmp_path: Path, order: str) -> None:
    report = verify_model(sample(tmp_path / "a.gguf", byte_order=order))
    assert [finding.level for finding in report.findings] == [NOTE]
    assert "architecture 'sample' is not known here" in report.findings[0].message
    assert report.tensors == 5


def test_a_sound_model_has_all_its_tensors(tmp_path: Path) -> None:
    assert verify_model(write_gguf(tmp_path / "a.gguf", TINY)).findings == ()
    folder = write_folder(tmp_path / "folder", TINY)
    (lacking,) = verify_model(folder).findings
    assert (lacking.level, lacking.check) == (WARNING, "tokenizer")
    (folder / "tokenizer.json").touch()
    assert verify_model(folder).findings == ()


STRUCTURE: dict[str, tuple[dict[str, Any], str, str]] = {
    "type": ({"type_id": 99}, ERROR, "type unknown (99) is not known"),
    "zero axis": ({"dims": [64, 0]}, ERROR, "has an axis of length 0"),
    "partial block": ({"dims": [63, 5]}, ERROR, "rows of 63 values are not a multiple of the 32 of a Q8_0 block"),
    "misaligned": ({"offset": 4641}, ERROR, "offset 4641 is not a multiple of 32"),
    "outside": ({"offset": 1 << 40}, ERROR, "it is truncated or damaged"),
    "overlap": ({"offset": 0}, ERROR, "overlaps"),
    "larger": ({"dims": [64, 6]}, ERROR, "overlaps 'blk.0.ffn.weight' by"),
    "smaller": ({"dims": [64, 3]}, WARNING, "unused bytes lie before it"),
}


@pytest.mark.parametrize("case", STRUCTURE)
def test_structure(tmp_path: Path, case: str) -> None:
    change, level, message = STRUCTURE[case]
    path = patch_entry(sample(tmp_path / "a.gguf"), "blk.0.ffn.weight", **change)
    found = [finding for finding in bad(path) if message in finding.message]
    assert found, bad(path)
    assert {finding.level for finding in found} == {level}


def test_all_faults_are_listed(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    patch_entry(path, "blk.0.ffn.weight", type_id=99)
    patch_entry(path, "blk.1.ffn.weight", offset=1 << 40)
    patch_entry(path, "token_embd.weight", offset=7)
    patch(path, entry_position(path.read_bytes(), "blk.1.norm.weight") - 17, b"blk.0.norm.weight")
    wheres = [finding.where for finding in verify_model(path).findings if finding.level == ERROR]
    assert {"blk.0.ffn.weight", "blk.1.ffn.weight", "token_embd.weight", "blk.0.norm.weight"} <= set(wheres)


def test_what_ends_the_reading(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    whole = path.read_bytes()
    for data, message in (
        (b"GGML" + whole[4:], "it is not a GGUF file"),
        (whole[:4] + pack("<I", 9) + whole[8:], "GGUF version 9"),
        (whole[:200], "damaged"),
        (whole[:8] + pack("<Q", 1 << 60) + whole[16:], "the number of tensors is"),
    ):
        path.write_bytes(data)
        assert [message in finding.message for finding in bad(path)] == [True], bad(path)
    path.write_bytes(b"")
    assert [(it.level, it.message) for it in bad(path)] == [(ERROR, f"{path} is empty")]
    with pytest.raises(ModelNotFound):
        verify_model(tmp_path / "gone.gguf")


def test_a_hostile_header_does_not_fill_the_memory(tmp_path: Path) -> None:
    head = b"GGUF" + pack("<IQQ", 3, 5000, 0)
    entries = b"".join(pack("<Q", 4) + b"%04d" % i + pack("<IQIQ", 1, 0, 77, 1) for i in range(5000))
    path = tmp_path / "a.gguf"
    path.write_bytes(head + entries)
    found = verify_model(path).findings
    assert len(found) == 201
    assert "the others are left out" in found[-1].message


def test_bytes_behind_the_last_tensor(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes() + bytes(64))
    assert [(it.level, it.message) for it in bad(path)] == [(WARNING, "64 unused bytes lie behind the last tensor")]


VALUES = {"nan": np.nan, "inf": np.inf}


@pytest.mark.parametrize("name", VALUES)
def test_floats_that_are_not_finite(tmp_path: Path, name: str) -> None:
    values = values_of((4, 64))
    values[2, 5] = VALUES[name]
    path = write_gguf(tmp_path / "a.gguf", TINY, more={}, change={"spare.weight": values})
    found = [finding for finding in bad(path) if finding.check == "values"]
    assert [finding.where for finding in found] == ["spare.weight"]
    assert ("1 values are NaN" if name == "nan" else "1 infinite") in found[0].message
    assert not [finding for finding in bad(path, values=False) if finding.check == "values"]


@pytest.mark.parametrize("number_format", [Q8_0, Q4_1])
def test_scales_that_are_not_finite(tmp_path: Path, number_format: type) -> None:
    tensor = stored("w", number_format, values_of((4, 64)))
    tensor.blocks.reshape(-1, number_format.nbytes)[3, :2] = (0x00, 0x7C)  # float16 infinity
    writer = GgufWriter(tmp_path / "a.gguf")
    writer.add("general.architecture", "sample")
    writer.add_tensor("w", tensor)
    writer.write()
    (found,) = bad(tmp_path / "a.gguf")
    assert (found.level, found.check, found.where) == (ERROR, "values", "w")
    assert "a block's scale is not finite" in found.message


def test_a_matrix_of_zeros_is_a_warning(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", TINY, change={"output.weight": np.zeros((131, 48), np.float32)})
    assert [(it.level, it.where) for it in bad(path)] == [(WARNING, "output.weight")]


METADATA: dict[str, tuple[dict[str, Any], str, str]] = {
    "nan": ({"x.nan": float("nan")}, ERROR, "is nan"),
    "infinite list": ({"x.list": np.array([1, np.inf], np.float32)}, ERROR, "holds 1 values NaN or infinite"),
    "zero byte": ({"x.text": "a\0b"}, WARNING, "holds a zero byte"),
    "key": ({"X key": 1}, WARNING, "not in lower case"),
    "id": ({"tokenizer.ggml.bos_token_id": 32}, ERROR, "is 32, there are 32 tokens"),
    "name": ({"general.name": 5}, ERROR, "is of type u32, it must be str"),
    "merges": ({"tokenizer.ggml.merges": [1, 2]}, ERROR, "is not an array of strings"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata(tmp_path: Path, case: str) -> None:
    more, level, message = METADATA[case]
    (found,) = bad(sample(tmp_path / "a.gguf", more=more))
    assert (found.level, found.where) == (level, next(iter(more)))
    assert message in found.message


def test_the_tokenizer(tmp_path: Path) -> None:
    writer = GgufWriter(tmp_path / "a.gguf")
    writer.add("tokenizer.ggml.model", "gpt2")
    writer.add("tokenizer.ggml.tokens", ["a", "b", "a", ""], "[str]")
    writer.add("tokenizer.ggml.scores", np.zeros(3, np.float32))
    writer.add("tokenizer.ggml.token_type", np.array([1, 2, 3, 9], np.int32))
    writer.add_tensor("token_embd.weight", values_of((3, 8)))
    writer.write()
    found = {(it.where, it.level) for it in bad(tmp_path / "a.gguf")}
    assert found == {
        ("general.architecture", ERROR),
        ("tokenizer.ggml.scores", ERROR),
        ("tokenizer.ggml.token_type", ERROR),
        ("tokenizer.ggml.tokens", WARNING),
        ("token_embd.weight", ERROR),
    }


def test_tensors_of_the_architecture(tmp_path: Path) -> None:
    change: dict[str, Any] = {
        "blk.1.ffn_up.weight": None,
        "output_norm.weight": np.ones(47, np.float32),
        "blk.0.extra.weight": np.ones(3, np.float32),
    }
    assert set(change) - {"blk.0.extra.weight"} <= gguf_weights(TINY).keys()
    found = bad(write_gguf(tmp_path / "a.gguf", TINY, change=change))
    assert {(it.level, it.where) for it in found} == {
        (ERROR, "output_norm.weight"), (ERROR, "blk.1.ffn_up.weight"), (WARNING, ""),
    }  # fmt: skip
    assert "has shape [47], the architecture [48]" in " ".join(it.message for it in found)


def test_a_wrong_number_of_layers_does_not_fill_the_screen(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", TINY)
    data = path.read_bytes()
    key = b"llama.block_count"
    found = bad(patch(path, data.index(key) + len(key) + 4, pack("<I", 4000)))
    assert len(found) == 201
    assert "35782 more differences" in found[-1].message


def test_layers_of_an_unknown_architecture(tmp_path: Path) -> None:
    writer = GgufWriter(tmp_path / "a.gguf")
    writer.add("general.architecture", "sample")
    writer.add("sample.block_count", 3, "u32")
    for layer in (0, 2, 5):
        writer.add_tensor(f"blk.{layer}.w", values_of((2,)))
    writer.write()
    messages = [it.message for it in bad(tmp_path / "a.gguf")]
    assert messages == [
        "1 of 3 layers have no tensor: blk.1",
        "tensors of layers beyond the 3 there are: blk.5",
    ]


def test_splits(tmp_path: Path) -> None:
    first, second = splits(tmp_path)
    assert not [finding for finding in bad(first) if finding.level == ERROR]
    patch_entry(second, "blk.1.norm.weight", offset=3)
    errors = [it.message for it in bad(first) if it.level == ERROR]
    assert errors[0] == f"in {second.name}: offset 3 is not a multiple of 32"
    assert "it is truncated or damaged" in errors[1]
    assert len(errors) == 2
    second.unlink()
    assert "is missing: it is split 2 of 2" in bad(first)[0].message


def test_hashes_and_lists(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    report = verify_model(path, hashes=True)
    assert report.hashes["a.gguf"] == sha256(path.read_bytes()).hexdigest()
    assert len(report.hashes) == 6
    listed = tmp_path / "list"
    listed.write_text("# a list\n" + "\n".join(format_hash_list(report.hashes)))
    assert read_hash_list(listed) == report.hashes
    assert bad(path, wanted=read_hash_list(listed)) == []
    patch(path, path.stat().st_size - 40, b"\1\2")
    wheres = {it.where for it in bad(path, wanted=read_hash_list(listed)) if it.check == "hash"}
    assert wheres == {"a.gguf", "a.gguf:blk.1.ffn.weight"}


def test_hashing_keeps_no_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = []
    monkeypatch.setattr("sporelm.tools.hashes.CHUNK_BYTES", 64)
    monkeypatch.setattr("sporelm.tools.hashes.drop_pages", lambda part: dropped.append(part.nbytes))
    path = sample(tmp_path / "a.gguf")
    report = verify_model(path, values=False, hashes=True)
    assert report.hashes["a.gguf"] == sha256(path.read_bytes()).hexdigest()
    assert sum(dropped) > path.stat().st_size
    assert max(dropped) == 64


def test_lists_of_other_programs(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    right = sha256(path.read_bytes()).hexdigest()
    listed = tmp_path / "list"
    listed.write_text(f"{right} *dir/a.gguf\n{'0' * 64}  other.gguf\nxxh64     0123456789abcdef  a.gguf\n")
    assert bad(path, wanted=read_hash_list(listed)) == []
    listed.write_text(f"{right}  other.gguf\n")
    assert "says nothing of a.gguf" in bad(path, wanted=read_hash_list(listed))[0].message
    listed.write_text(f"sha256    {right}  a.gguf:nope\n")
    assert "and not in the model" in bad(path, wanted=read_hash_list(listed))[0].message
    listed.write_text("nothing")
    with pytest.raises(RequestError, match="holds no line"):
        read_hash_list(listed)
    with pytest.raises(RequestError, match="cannot be read"):
        read_hash_list(tmp_path / "gone")
