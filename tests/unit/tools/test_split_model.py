"""Splitting and merging: byte-exact round trips, names and keys of llama.cpp, the gguf package as a second reader."""

from functools import partial
from pathlib import Path

import gguf
import pytest

from gguf_models import META, contents, write_model
from sporelm.errors import ModelNotFound, RequestError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.quant import Q8_0
from sporelm.tools import split_model
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.merge_splits import find_split_model, merge_splits
from sporelm.tools.output_file import OutputFile, save_models

BY_TENSORS = partial(split_model.group_by_count, maximum=5)
BY_SIZE = partial(split_model.group_by_size, maximum=20_000)


def cut_to(folder: Path, source: Path, cut, **options) -> list[Path]:
    folder.mkdir(exist_ok=True)
    outputs = split_model.split_model(open_lazy_model(source), folder / "part", cut, **options)
    return [written.path for written in save_models(outputs)]


@pytest.mark.parametrize("cut", [BY_TENSORS, BY_SIZE], ids=["tensors", "size"])
@pytest.mark.parametrize("no_tensor_first", [False, True])
@pytest.mark.parametrize("order", ["little", "big"])
def test_split_and_merge_give_the_file_back(tmp_path: Path, cut, no_tensor_first: bool, order: str) -> None:
    whole = write_model(tmp_path / "m.gguf", matrices=Q8_0, byte_order=order, raw=[29, 34, 40])
    parts = cut_to(tmp_path / "s", whole, cut, no_tensor_first=no_tensor_first)
    assert len(parts) > 2
    assert contents(parts[0]) == contents(whole)
    (written,) = save_models([merge_splits(parts[0])])
    assert written.path == tmp_path / "s" / "part.gguf"
    assert written.path.read_bytes() == whole.read_bytes()


def test_names_and_keys_are_those_of_llama_cpp(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf")
    parts = cut_to(tmp_path / "s", whole, partial(split_model.group_by_count, maximum=12))
    assert [path.name for path in parts] == [f"part-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    total = 0
    for number, path in enumerate(parts):
        reader = gguf.GGUFReader(path)
        total += len(reader.tensors)
        fields = [name for name in reader.fields if not name.startswith("GGUF.")]
        assert fields[-3:] == ["split.no", "split.tensors.count", "split.count"]
        assert fields[:-3] == (list(META) if number == 0 else [])
        found = {name: (reader.fields[name].types[0].name, reader.fields[name].contents()) for name in fields[-3:]}
        assert found == {
            "split.no": ("UINT16", number),
            "split.tensors.count": ("INT32", 29),
            "split.count": ("UINT16", 3),
        }
    assert total == 29


def test_first_file_without_tensors(tmp_path: Path) -> None:
    parts = cut_to(tmp_path / "s", write_model(tmp_path / "m.gguf"), BY_SIZE, no_tensor_first=True)
    assert gguf.GGUFReader(parts[0]).tensors == []
    assert len(gguf.GGUFReader(parts[1]).tensors) > 0


def test_a_tensor_above_the_size_has_its_own_file(tmp_path: Path) -> None:
    model = open_lazy_model(write_model(tmp_path / "m.gguf"))
    groups = split_model.group_by_size(model.tensors, 300)
    assert all(groups)
    assert all(len(group) == 1 or sum(tensor.nbytes for tensor in group) <= 300 for group in groups)
    assert [tensor for group in groups for tensor in group] == list(model.tensors)


def test_a_split_model_is_split_again(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf")
    first = cut_to(tmp_path / "a", whole, BY_SIZE)[0]
    again = cut_to(tmp_path / "b", first, BY_TENSORS)
    assert [path.read_bytes() for path in again] == [
        path.read_bytes() for path in cut_to(tmp_path / "c", whole, BY_TENSORS)
    ]


def test_an_empty_model_is_one_file(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf", shapes={})
    parts = cut_to(tmp_path / "s", whole, BY_TENSORS)
    assert [path.name for path in parts] == ["part-00001-of-00001.gguf"]
    assert open_lazy_model(parts[0]).tensors == []


def test_each_file_tells_an_unusual_alignment(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf", meta=META | {"general.alignment": 256})
    parts = cut_to(tmp_path / "s", whole, BY_SIZE)
    for part in parts:
        assert {tensor.data_offset % 256 for tensor in gguf.GGUFReader(part).tensors} == {0}
    save_models([merge_splits(parts[0], tmp_path / "back.gguf")])
    assert (tmp_path / "back.gguf").read_bytes() == whole.read_bytes()


def test_unknown_types_keep_their_byte_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from sporelm.quant import FORMATS

    monkeypatch.delitem(FORMATS, "IQ1_M", raising=False)
    model = open_lazy_model(write_model(tmp_path / "m.gguf", byte_order="big", raw=[29]))
    with pytest.raises(UnsupportedModel, match=r"IQ1_M.*big-endian to little-endian"):
        save_models([OutputFile(tmp_path / "n.gguf", replace(model, byte_order="little"))])


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("500M", 500_000_000), ("2G", 2_000_000_000), ("3K", 3000), ("2Gi", 2 << 30), ("7MB", 7_000_000)],
)
def test_size(text: str, size: int) -> None:
    assert split_model.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "G", "2g", "1 G", "9" * 30, "2i"])
def test_size_that_is_none(text: str) -> None:
    with pytest.raises(RequestError, match="must be a whole number"):
        split_model.parse_size(text)


@pytest.mark.parametrize(
    ("name", "stem"),
    [("m.gguf", "m"), ("m-00001-of-00003.gguf", "m"), ("m", "m"), ("m.Q4_0.GGUF", "m.Q4_0"), (".gguf", ".gguf")],
)
def test_stem(name: str, stem: str) -> None:
    assert split_model.strip_split_suffix(Path("a") / name) == stem


def test_what_cannot_be_split_or_merged(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "m.gguf")
    with pytest.raises(RequestError, match="--max-tensors is 0"):
        split_model.group_by_count(open_lazy_model(whole).tensors, 0)
    with pytest.raises(RequestError, match="one file already"):
        merge_splits(whole)
    parts = cut_to(tmp_path / "s", whole, BY_TENSORS)
    with pytest.raises(RequestError, match="is there already; --force"):
        cut_to(tmp_path / "s", whole, BY_TENSORS)
    write_model(tmp_path / "s" / "other.gguf")
    with pytest.raises(RequestError, match="merge one at a time"):
        find_split_model([str(tmp_path / "s" / "*.gguf")])
    assert find_split_model([str(path) for path in reversed(parts)]) == parts[0]
    parts[1].unlink()
    with pytest.raises(ModelNotFound, match="is missing"):
        merge_splits(parts[0])


def test_more_files_than_can_be_counted(tmp_path: Path) -> None:
    model = open_lazy_model(write_model(tmp_path / "m.gguf"))
    with pytest.raises(RequestError, match="the limit is 65535"):
        split_model.split_model(model, tmp_path / "x", lambda tensors: [[tensor] for tensor in tensors] * 3000)


def test_metadata_of_every_kind_survives(tmp_path: Path) -> None:
    from unit.files.test_gguf_reader import write  # every kind there is, nested arrays too

    for order in ("little", "big"):
        whole = write(tmp_path / f"{order}.gguf", order)
        with open_gguf(whole) as model:
            assert "c.nested" in model.metadata
        save_models([merge_splits(whole, tmp_path / f"{order}-copy.gguf")])
        assert (tmp_path / f"{order}-copy.gguf").read_bytes() == whole.read_bytes()
