"""Safetensors: the reference package as oracle, sharded folders, and files that lie."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sporelm.errors import ModelError, ModelFileError, ModelNotFound
from sporelm.files.safetensors import INDEX_NAME, open_safetensors
from sporelm.quant import BF16, quantize_tensor


def raw_file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(path: Path, tensors: dict[str, np.ndarray], **metadata: str) -> Path:
    """A good file of float32 tensors, written here so that no package is needed."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, values in tensors.items():
        part = values.astype("<f4").tobytes()
        header[name] = entry("F32", list(values.shape), [len(data), len(data) + len(part)])
        data += part
    path.write_bytes(raw_file(header, data))
    return path


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([-1.5], np.float32)


def test_the_oracle_agrees(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    values = {"a": A, "half": A.astype(np.float16), "ids": np.arange(4), "none": np.zeros((0, 3), np.float32)}
    package.save_file(values, tmp_path / "m.safetensors", {"format": "pt"})
    model = open_safetensors(tmp_path / "m.safetensors")
    assert set(model.names) == set(values)
    assert model.metadata == {"format": "pt"}
    for name in ("a", "half", "ids", "none"):
        assert np.array_equal(model.tensor(name).dequantize(), values[name].astype(np.float32))
    assert model.tensors["ids"].type_name == "I64"


def test_story_model_equals_the_oracle(story: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    expected = package.load_file(story / "model.safetensors")
    with open_safetensors(story) as model:
        assert set(model.names) == set(expected)
        for name, values in expected.items():
            assert np.array_equal(model.tensor(name).dequantize(), values)
    assert model.tensors["lm_head.weight"].shape == (2048, 128)
    with pytest.raises(ModelFileError, match="was closed"):
        model.tensor("lm_head.weight")


def test_bf16_and_odd_offsets(tmp_path: Path) -> None:
    blocks = quantize_tensor(BF16, A).tobytes()
    header = {"u8": entry("U8", [1], [0, 1]), "b": entry("BF16", [2, 3], [1, 13]), "scalar": entry("F32", [], [13, 17])}
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw_file(header, b"\7" + blocks + B.tobytes()))
    model = open_safetensors(path)
    assert np.array_equal(model.tensor("b").dequantize(), A)
    assert np.shares_memory(model.tensor("b").blocks, model.tensor("b").blocks)
    assert model.tensor("scalar").dequantize().item() == -1.5
    with pytest.raises(ModelFileError, match=r"has no tensor 'scala'; the nearest name is 'scalar'"):
        model.tensor("scala")


def sharded(folder: Path, index: Any = None) -> Path:
    write(folder / "model-00001-of-00002.safetensors", {"a": A}, format="pt")
    write(folder / "model-00002-of-00002.safetensors", {"b": B})
    if index is None:
        index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": index}))
    return folder


def test_sharded_folders(tmp_path: Path) -> None:
    model = open_safetensors(sharded(tmp_path))
    assert len(model.paths) == 2
    assert np.array_equal(model.tensor("a").dequantize(), A)
    assert np.array_equal(model.tensor("b").dequantize(), B)
    assert model.metadata == {"format": "pt"}


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"a": ONE, "b": ONE}, "says that model-00001-of-00002.safetensors holds tensor 'b', it does not"),
        ({"a": ONE, "b": TWO, "c": TWO}, "holds tensor 'c', it does not"),
        ({"a": TWO, "b": ONE}, "holds tensor 'a', it does not"),
        ({}, "weight_map must map"),
        (["a"], "weight_map must map"),
        ({"a": "../../etc/x.safetensors"}, "must be the plain name"),
        ({"a": "/etc/x.safetensors"}, "must be the plain name"),
        ({"a": "sub/x.safetensors"}, "must be the plain name"),
        ({"a": "c:x.safetensors"}, "must be the plain name"),
        ({"a": "..\\x.safetensors"}, "must be the plain name"),
        ({"a": "pytorch_model.bin"}, "must be the plain name"),
        ({"a": "x\n.safetensors"}, "must be the plain name"),
        ({"a": 7}, "must be the plain name"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, index: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_safetensors(sharded(tmp_path, index))


def test_shards_that_do_not_agree(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    write(folder / TWO, {"b": B, "extra": B})
    with pytest.raises(ModelFileError, match=r"holds tensor 'extra', which .* does not list"):
        open_safetensors(folder)
    write(folder / TWO, {"b": B, "a": A})
    with pytest.raises(ModelFileError, match="tensor 'a' is both in"):
        open_safetensors(folder)
    (folder / TWO).unlink()
    with pytest.raises(ModelNotFound, match=f"{TWO} does not exist"):
        open_safetensors(folder)


def test_places_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds neither model.safetensors nor"):
        open_safetensors(tmp_path)
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_safetensors(tmp_path / "m.safetensors")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    for name in ("pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin"):
        (tmp_path / name).write_bytes(b"")
    what = "nor model.safetensors.index.json; pytorch_model-00001-of-00002.bin may run any code when it is read, so"
    with pytest.raises(ModelNotFound, match=f"{what} it is not; save_pretrained of transformers writes safetensors"):
        open_safetensors(tmp_path)


EIGHT = bytes(8)
LIES: dict[str, tuple[bytes, str]] = {
    "short": (b"abc", "has 3 bytes, too few"),
    "length": (raw_file({}, length=1 << 63), f"header length is {1 << 63}, the limit here is 2"),
    "length a bit too long": (raw_file({}, length=3), "header length is 3, the limit here is 2"),
    "not JSON": (raw_file(b"{x}"), "the header is not JSON"),
    "not UTF-8": (raw_file(b"\xff\xff"), "the header is not JSON"),
    "a list": (raw_file([1]), "must be a JSON object"),
    "deep": (raw_file(b"[" * 200_000), "nested too deeply"),
    "a number too long": (raw_file(b'{"t":' + b"9" * 10_000 + b"}"), "the header is not JSON"),
    "name twice": (raw_file(b'{"t":{},"t":{}}'), "key 't' appears twice"),
    "field twice": (raw_file(b'{"t":{"dtype":"F32","dtype":"F16"}}'), "key 'dtype' appears twice"),
    "metadata": (raw_file({"__metadata__": {"a": 1}}), "__metadata__ must map strings to strings"),
    "no object": (raw_file({"t": 5}), "tensor 't' is not described by an object"),
    "no dtype": (raw_file({"t": {}}), "has dtype 'None'"),
    "dtype": (raw_file({"t": entry("F31")}, EIGHT), "has dtype 'F31', which the format does not know"),
    "dtype list": (raw_file({"t": entry(["F32"])}, EIGHT), "which the format does not know"),
    "shape text": (raw_file({"t": entry(shape="2")}, EIGHT), "shape must be a list"),
    "shape negative": (raw_file({"t": entry(shape=[-2])}, EIGHT), "shape must be a list"),
    "shape bool": (raw_file({"t": entry(shape=[2, True])}, EIGHT), "shape must be a list"),
    "shape float": (raw_file({"t": entry(shape=[2.0])}, EIGHT), "shape must be a list"),
    "shape huge": (raw_file({"t": entry(shape=[1 << 63])}, EIGHT), "shape must be a list"),
    "rank": (raw_file({"t": entry(shape=[1] * 17)}, EIGHT), "at most 16 whole numbers"),
    "product": (raw_file({"t": entry(shape=[1 << 32, 1 << 32])}, EIGHT), "data_offsets hold 64"),
    "size": (raw_file({"t": entry(shape=[3])}, EIGHT), "F32 of 3 values is 96 bits, data_offsets hold 64"),
    "offsets three": (raw_file({"t": entry(offsets=[0, 4, 8])}, EIGHT), "must be two whole numbers"),
    "offsets reversed": (raw_file({"t": entry(offsets=[8, 0])}, EIGHT), "must be two whole numbers in order"),
    "offsets negative": (raw_file({"t": entry(offsets=[-8, 0])}, EIGHT), "must be two whole numbers"),
    "beyond the end": (raw_file({"t": entry()}, bytes(7)), "the file at"),
    "overlap": (
        raw_file({"t": entry(), "u": entry(offsets=[4, 12])}, bytes(12)),
        "tensors 't' and 'u' overlap",
    ),
    "terminal": (raw_file({"\n\x1b[2J\ud800": 5}), r"tensor '\n\x1b[2J\ud800' is not"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_named_in_one_line(tmp_path: Path, name: str) -> None:
    raw, message = LIES[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError) as caught:
        open_safetensors(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@given(
    place=st.integers(0, 400),
    change=st.binary(max_size=12) | st.sampled_from([b"9" * 30, b"-1", b"{", b'"', b"null", b"true", b"[[[["]),
    removed=st.integers(0, 40),
)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_headers_give_only_our_errors(tmp_path: Path, place: int, change: bytes, removed: int) -> None:
    path = write(tmp_path / "m.safetensors", {"a": A, "b": B, "c": A}, format="pt")
    raw = path.read_bytes()
    path.unlink()
    mutant = tmp_path / "mutant.safetensors"
    mutant.write_bytes(raw[:place] + change + raw[place + removed :])
    message = ""
    try:
        model = open_safetensors(mutant)
        for name in model.names:
            assert model.tensor(name).dequantize().shape == model.tensors[name].shape
    except ModelError as error:
        message = str(error)
    assert "\n" not in message
