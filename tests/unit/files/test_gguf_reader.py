"""Reading and writing GGUF: round trips, the gguf package as the oracle, real vocabularies, split models."""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.errors import ModelFileError, ModelNotFound, RequestError
from sporelm.files.gguf import GgufFile, GgufWriter, StringArray, open_gguf
from sporelm.quant import BF16, F16, F32, FORMATS, Q4_1, Q8_0, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

ENTRIES: list[tuple[str, str, Any]] = [
    ("a.u8", "u8", 200),
    ("a.i8", "i8", -100),
    ("a.u16", "u16", 60_000),
    ("a.i16", "i16", -30_000),
    ("a.u32", "u32", 4_000_000_000),
    ("a.i32", "i32", -2_000_000_000),
    ("a.f32", "f32", 0.15625),
    ("a.bool", "bool", True),
    ("a.str", "str", "größer ▁ 🙂\n"),
    ("a.u64", "u64", 1 << 63),
    ("a.i64", "i64", -(1 << 62)),
    ("a.f64", "f64", 0.1),
    ("b.empty", "[u8]", []),
    ("b.i32", "[i32]", [1, -2, 3]),
    ("b.u64", "[u64]", [1, (1 << 64) - 1]),
    ("b.f32", "[f32]", [0.5, -1.25]),
    ("b.bool", "[bool]", [True, False, True]),
    ("b.str", "[str]", ["", "a", "▁the", "x" * 300]),
    ("b.none", "[str]", []),
    ("c.nested", "[[i32]]", [[1, 2], [], [3]]),
    ("c.words", "[[str]]", [["a"], ["b", "c"]]),
]


# The gguf package gives plain numbers as they are; of the others it knows no values, or not even the size.
NOT_READ_BY_GGUF = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "Q1_0", "Q2_0"}


def plain(value: Any) -> Any:
    """A metadata value as Python numbers, strings and lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, (list, StringArray)) else value


def tensors(seed: int = 0) -> dict[str, StoredTensor]:
    rng = np.random.default_rng(seed)
    shapes = {F32: (3, 5), F16: (2, 3, 4), BF16: (7,), Q8_0: (4, 64), Q4_1: (2, 2, 96)}
    result = {}
    for number_format in FORMATS.values():
        shape = shapes.get(number_format, (3, 2 * number_format.values))
        if number_format.can_quantize:
            blocks = quantize_tensor(number_format, rng.standard_normal(shape).astype(np.float32))
        else:
            blocks = rng.integers(0, 48, (prod(shape) // number_format.values, number_format.nbytes), dtype=np.uint8)
        name = f"t.{number_format.name}"
        result[name] = StoredTensor(name, number_format, shape, blocks)
    return result


def write(path: Path, order: str = "little", version: int = 3, **more: Any) -> Path:
    writer = GgufWriter(path, byte_order=order, version=version)
    for key, kind, value in ENTRIES:
        writer.add(key, value, kind)
    for key, value in more.items():
        writer.add(key.replace("__", "."), value)
    for name, tensor in tensors().items():
        writer.add_tensor(name, tensor)
    assert writer.write() == path.stat().st_size
    return path


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_round_trip(tmp_path: Path, order: str, version: int) -> None:
    with open_gguf(write(tmp_path / "m.gguf", order, version)) as model:
        assert (model.version, model.byte_order, model.alignment) == (version, order, 32)
        assert [(key, model.kinds[key], plain(model.metadata[key])) for key in model.metadata] == ENTRIES
        assert model.names == tuple(tensors())
        for name, expected in tensors().items():
            got = model.tensor(name)
            assert (got.format, got.shape) == (expected.format, expected.shape)
            assert np.array_equal(got.blocks, expected.blocks)
            assert model.tensors[name].offset % 32 == 0
            assert model.tensors[name].nbytes == expected.nbytes
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]  # nothing left beside it


@pytest.mark.parametrize("order", ["little", "big"])
def test_the_gguf_package_reads_what_we_write(tmp_path: Path, order: str) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = GgufWriter(path, byte_order=order)
    for key, kind, value in ENTRIES:
        if not kind.startswith("[[") and value != []:  # the package cannot give these back
            writer.add(key, value, kind)
    writer.add("general.alignment", 64)
    same = {"F32", "F16"} if order == "big" else set(FORMATS) - NOT_READ_BY_GGUF
    expected = {name: t for name, t in tensors().items() if t.format.name in same}
    for name, tensor in expected.items():
        writer.add_tensor(name, tensor)
    writer.write()
    theirs = gguf.GGUFReader(path)
    for key, kind, value in ENTRIES:
        if not kind.startswith("[[") and value != []:
            got = theirs.fields[key].contents()
            assert got == (pytest.approx(value) if kind == "f32" else value), key
    for tensor in theirs.tensors:
        mine = expected.pop(tensor.name)
        assert tensor.shape.tolist()[::-1] == list(mine.shape)
        values = tensor.data.astype(np.float32) if order == "big" else gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(values, mine.dequantize())
    assert not expected


@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_we_read_what_the_gguf_package_writes(tmp_path: Path, endian: str) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian[endian])
    writer.add_context_length(2048)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "▁b", "c"])
    writer.add_token_scores([0.5, 1.5, -2.0])
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = open_gguf(path)
    assert model.byte_order == endian.lower()
    assert model.metadata["general.architecture"] == "llama"
    assert model.metadata["llama.context_length"] == 2048
    assert model.metadata["tokenizer.ggml.tokens"] == ["a", "▁b", "c"]
    assert model.metadata["tokenizer.ggml.scores"].tolist() == [0.5, 1.5, -2.0]
    assert np.array_equal(model.tensor("f32").dequantize(), values)
    assert np.array_equal(model.tensor("f16").dequantize(), values.astype(np.float16).astype(np.float32))


def test_tensors_are_views_of_the_file_and_outlive_it(tmp_path: Path) -> None:
    model = open_gguf(write(tmp_path / "m.gguf"))
    first, second = model.tensor("t.Q8_0"), model.tensor("t.Q8_0")
    assert np.shares_memory(first.blocks, second.blocks)
    assert not first.blocks.flags.writeable
    model.close()
    model.close()
    assert np.array_equal(first.blocks, tensors()["t.Q8_0"].blocks)
    assert model.metadata["b.str"][2] == "▁the"
    with pytest.raises(ModelFileError, match="was closed"):
        model.tensor("t.F32")


def test_string_arrays_are_sequences(tmp_path: Path) -> None:
    words = open_gguf(write(tmp_path / "m.gguf")).metadata["b.str"]
    assert isinstance(words, StringArray)
    assert len(words) == 4
    assert words[1] == words[-3] == "a"
    assert words[1:3] == ["a", "▁the"]
    assert list(words) == words.decode_all() == ["", "a", "▁the", "x" * 300]
    assert words.index("▁the") == 2
    assert "b" not in words
    assert words != ["a"]
    with pytest.raises(IndexError):
        words[4]


def test_real_vocabularies_equal_the_oracle(shared: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = shared / "data" / "vocabs" / "ggml-vocab-bert-bge.gguf"
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    for key, value in ours.metadata.items():
        assert plain(value) == theirs.fields[key].contents(), key


def test_all_real_vocabularies_open(shared: Path) -> None:
    paths = sorted((shared / "data" / "vocabs").glob("*.gguf"))
    assert len(paths) == 8
    for path in paths:
        model = open_gguf(path)
        words = model.metadata["tokenizer.ggml.tokens"]
        assert len(words) == len(words.decode_all()) == len(model.metadata["tokenizer.ggml.token_type"])
        assert words[len(words) - 1] == words.decode_all()[-1]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match=r"has no tensor 't.Q8_3'; the nearest name is 't.Q"):
        open_gguf(path).tensor("t.Q8_3")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is a folder; give a file"):
        open_gguf(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelFileError, match="is empty"):
        open_gguf(str(tmp_path / "empty.gguf"))


class TestSplits:
    """Models in several files."""

    def make(self, folder: Path, count: int = 3, **wrong: Any) -> list[Path]:
        paths = []
        for i, (name, tensor) in enumerate(list(tensors().items())[:count]):
            path = folder / f"m-{i + 1:05d}-of-{count:05d}.gguf"
            writer = GgufWriter(path, byte_order="big" if i == 1 else "little")
            if i == 0:
                writer.add("general.architecture", "llama")
            writer.add("split.no", i if i != 2 else wrong.get("number", i), "u16")
            writer.add("split.count", count, "u16")
            writer.add("split.tensors.count", wrong.get("total", count), "i32")
            writer.add_tensor("t.F32" if wrong.get("same") else name, tensor)
            writer.write()
            paths.append(path)
        return paths

    def test_the_first_opens_all(self, tmp_path: Path) -> None:
        paths = self.make(tmp_path)
        model = open_gguf(paths[0])
        assert model.paths == tuple(paths)
        assert model.metadata["general.architecture"] == "llama"
        for name in list(tensors())[:3]:
            assert np.array_equal(model.tensor(name).blocks, tensors()[name].blocks)

    def test_a_later_one_names_the_first(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match=r"split 2 of 3; open the first one: .*m-00001-of-00003\.gguf"):
            open_gguf(self.make(tmp_path)[1])

    def test_a_missing_one_is_named(self, tmp_path: Path) -> None:
        paths = self.make(tmp_path)
        paths[2].unlink()
        with pytest.raises(ModelNotFound, match=r"m-00003-of-00003.gguf is missing: it is split 3 of 3"):
            open_gguf(paths[0])

    def test_a_renamed_one_is_named(self, tmp_path: Path) -> None:
        path = self.make(tmp_path)[0].rename(tmp_path / "other.gguf")
        with pytest.raises(ModelFileError, match=r"it must be named NAME-00001-of-00003.gguf"):
            open_gguf(path)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"number": 1}, "says that it is split 2 of 3, it should be 3 of 3"),
            ({"total": 4}, "split.tensors.count is 4, the splits hold 3"),
            ({"same": True}, "tensor 't.F32' is both in"),
        ],
    )
    def test_splits_that_disagree(self, tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            open_gguf(self.make(tmp_path, **wrong)[0])


class TestWriter:
    """Values that the writer infers and inputs that it refuses."""

    def test_kinds_follow_values(self, tmp_path: Path) -> None:
        writer = GgufWriter(tmp_path / "m.gguf")
        values: dict[str, Any] = {
            "u32": 1,
            "i32": -1,
            "u64": 1 << 40,
            "i64": -(1 << 40),
            "f32": 0.5,
            "bool": False,
            "str": "x",
            "[i32]": [1, -1],
            "[u32]": [1, 1 << 31],
            "[i64]": [-1, 1 << 31],
            "[f32]": [0.5],
            "[str]": ["a"],
            "[i8]": np.array([1, 2], np.int8),
            "[[i32]]": [[1], [2, 3]],
        }
        for kind, value in values.items():
            writer.add(kind, value)
        writer.write()
        model = open_gguf(tmp_path / "m.gguf")
        assert dict(model.kinds) == {kind: kind for kind in values}
        assert {key: plain(value) for key, value in model.metadata.items()} == {k: plain(v) for k, v in values.items()}

    def test_metadata_can_be_copied_with_its_kinds(self, tmp_path: Path) -> None:
        source = open_gguf(write(tmp_path / "a.gguf"))
        writer = GgufWriter(tmp_path / "b.gguf", byte_order="big")
        for key, value in source.metadata.items():
            writer.add(key, value, source.kinds[key])
        for name in source.names:
            writer.add_later(
                name, source.tensor(name).format, source.tensors[name].shape, lambda n=name: source.tensor(n)
            )
        writer.write()
        copy = open_gguf(tmp_path / "b.gguf")
        assert [(k, copy.kinds[k], plain(v)) for k, v in copy.metadata.items()] == ENTRIES
        assert all(np.array_equal(copy.tensor(n).blocks, source.tensor(n).blocks) for n in source.names)

    def test_arrays_and_alignment(self, tmp_path: Path) -> None:
        writer = GgufWriter(tmp_path / "m.gguf")
        x = np.arange(15, dtype=np.float32).reshape(3, 5)
        writer.add_tensor("turned", x.T)
        writer.add("general.alignment", 256)
        writer.add_tensor("half", x.astype(np.float16))
        writer.add_tensor("big", x.astype(">f4"))
        writer.write()
        model = open_gguf(tmp_path / "m.gguf")
        assert model.alignment == 256
        assert all(info.offset % 256 == 0 for info in model.tensors.values())
        assert np.array_equal(model.tensor("turned").dequantize(), x.T)
        assert np.array_equal(model.tensor("half").dequantize(), x)
        assert np.array_equal(model.tensor("big").dequantize(), x)

    @pytest.mark.parametrize(
        ("act", "message"),
        [
            (lambda w: (w.add("k", 1), w.add("k", 2)), "'k' was added already"),
            (lambda w: w.add("k", 256, "u8"), "'256' does not fit kind u8"),
            (lambda w: w.add("k", [1, 300], "[u8]"), r"does not fit kind \[u8\]"),
            (lambda w: w.add("k", [1.5], "[i32]"), "does not fit"),
            (lambda w: w.add("k", [[1, 2], [3, 4]], "[i32]"), "does not fit"),
            (lambda w: w.add("k", "abc", "[str]"), "does not fit"),
            (lambda w: w.add("k", ["a", 1], "[str]"), "does not fit"),
            (lambda w: w.add("k", 1, "str"), "does not fit"),
            (lambda w: w.add("k", "x", "u32"), "does not fit"),
            (lambda w: w.add("k", 1, "u128"), "kind 'u128' is not one of"),
            (lambda w: w.add("k", {}), "no GGUF type"),
            (lambda w: w.add("k", []), "no GGUF type"),
            (lambda w: w.add("k", ["a", 1]), "no GGUF type"),
            (lambda w: w.add("k", 1 << 70), "no GGUF type"),
            (lambda w: w.add("k", [1 << 70]), "cannot be written"),
            (lambda w: w.add("k", [[[[[1]]]]]), "does not fit"),
            (lambda w: w.add("", 1), "must have 1 to"),
            (lambda w: w.add("k", "\ud800"), "not valid Unicode"),
            (lambda w: w.add("general.alignment", 48), "power of two"),
            (lambda w: w.add("general.alignment", 64, "u64"), "must be a u32"),
            (lambda w: w.add_tensor("t", np.zeros(3)), "float64 arrays cannot be written"),
            (lambda w: w.add_tensor("t", np.zeros((0, 3), np.float32)), "none of 0"),
            (lambda w: w.add_tensor("t", np.zeros((1,) * 5, np.float32)), "at most 4 axes"),
            (lambda w: w.add_later("t", Q8_0, (2, 33), None), "rows of 33 values"),
            (lambda w: [w.add_tensor("t", np.zeros(3, np.float32)) for _ in range(2)], "'t' was added already"),
        ],
    )
    def test_refusals(self, tmp_path: Path, act: Any, message: str) -> None:
        with pytest.raises(RequestError, match=message):
            act(GgufWriter(tmp_path / "m.gguf"))

    def test_a_failure_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.gguf")
        before = path.read_bytes()
        writer = GgufWriter(path)
        writer.add_tensor("good", np.zeros(100, np.float32))
        writer.add_later("bad", F32, (5,), lambda: tensors()["t.Q8_0"])
        with pytest.raises(RequestError, match="was announced as F32"):
            writer.write()
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_places_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match="cannot be written"):
            GgufWriter(tmp_path / "no" / "m.gguf").write()
        with pytest.raises(RequestError, match="'middle'"):
            GgufWriter(tmp_path / "m.gguf", byte_order="middle")


def test_public_names() -> None:
    import sporelm.files.gguf as package

    assert package.GgufFile is GgufFile
    with pytest.raises(AttributeError):
        _ = package.nothing
