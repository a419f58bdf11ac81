"""Descriptions of files, and the resolution of names and patterns to files."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gguf_samples import TEMPLATE, sample, splits
from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.model_files import filter_names, find_models, open_model_files
from sporelm.tools.show import describe_files


@pytest.mark.parametrize("order", ["little", "big"])
def test_describe_a_gguf_file(tmp_path: Path, order: str) -> None:
    path = sample(tmp_path / "a.gguf", byte_order=order)
    with open_model_files(path) as source:
        it = describe_files(source, detail=3)
    assert (it.kind, it.version, it.byte_order, it.alignment) == ("gguf", 3, order, 32)
    assert it.nbytes == path.stat().st_size
    values = {entry.key: entry for entry in it.metadata}
    assert values["tokenizer.ggml.tokens"][1:4] == ("[str]", ["t0", "t1", "t2"], 32)
    assert values["tokenizer.ggml.scores"].value == [0, 1, 2]
    assert values["sample.flags"].value == [True, False]
    assert values["sample.nested"][1:4] == ("[[i32]]", [[1, 2, 3], [4]], 2)
    assert values["tokenizer.chat_template"].value == TEMPLATE
    assert values["general.file_type"].note == "Q4_K_M"
    assert [entry.name for entry in it.tensors][:2] == ["token_embd.weight", "blk.0.norm.weight"]
    assert it.tensors[0].shape == (32, 256)
    assert {row.type_name: row[1:] for row in it.types} == {
        "Q4_K": (1, 8192, 32 * 144),
        "Q8_0": (1, 320, 340),
        "F32": (2, 16, 64),
        "F16": (1, 21, 42),
    }
    assert it.parameters == 8192 + 320 + 16 + 21
    assert it.bits_per_weight == pytest.approx((32 * 144 + 340 + 64 + 42) * 8 / it.parameters)
    assert json.loads(json.dumps(it.as_json(), allow_nan=False))["tensors"][0]["shape"] == [32, 256]


def test_all_elements_and_filters(tmp_path: Path) -> None:
    with open_model_files(sample(tmp_path / "a.gguf")) as source:
        it = describe_files(source, meta=["*.tokens", "*.nested"], tensors=["blk.0.*"], detail=None)
    assert [entry.key for entry in it.metadata] == ["sample.nested", "tokenizer.ggml.tokens"]
    assert it.metadata[1].value == [f"t{i}" for i in range(32)]
    assert [entry.name for entry in it.tensors] == ["blk.0.norm.weight", "blk.0.ffn.weight"]
    assert (it.metadata_count, it.tensor_count, len(it.types)) == (12, 5, 4)


def test_hidden_arrays_are_not_decoded(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes().replace(b"t31", b"t\xff1"))
    with open_model_files(path) as source:
        assert describe_files(source, detail=4).metadata_count == 12
        with pytest.raises(ModelFileError, match="string 31 is not UTF-8"):
            describe_files(source, detail=None)


def test_floats_that_json_lacks_become_text(tmp_path: Path) -> None:
    more = {"x.nan": float("nan"), "x.list": np.array([1, np.inf], np.float32)}
    with open_model_files(sample(tmp_path / "a.gguf", more=more)) as source:
        found = {entry["key"]: entry["value"] for entry in describe_files(source).as_json()["metadata"]}
    assert found["x.nan"] == "nan"
    assert found["x.list"] == [1.0, "inf"]


def test_splits_are_one_model(tmp_path: Path) -> None:
    first, second = splits(tmp_path)
    with open_model_files(first) as source:
        it = describe_files(source)
    assert it.paths == (first, second)
    assert [(entry.name, entry.file_index) for entry in it.tensors] == [
        ("blk.0.norm.weight", 0),
        ("blk.1.norm.weight", 1),
    ]
    assert it.nbytes == first.stat().st_size + second.stat().st_size


def test_a_folder_with_its_configuration(tmp_path: Path) -> None:
    save_file({"w": np.zeros((2, 3), np.int32)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "list": [1, 2, 3]}))
    with open_model_files(tmp_path) as source:
        it = describe_files(source, detail=2)
    assert (it.kind, it.version, it.tensors[0].type_name, it.tensors[0].shape) == ("safetensors", None, "I32", (2, 3))
    assert [entry[:4] for entry in it.metadata] == [
        ("format", "str", "pt", None),
        ("config.model_type", "json", "x", None),
        ("config.list", "json", [1, 2], 3),
    ]
    (tmp_path / "config.json").write_text("[")
    with open_model_files(tmp_path) as source, pytest.raises(ModelFileError, match="not readable JSON"):
        describe_files(source)


def test_file_types_are_those_of_llama_cpp() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {int(item): item.name.removeprefix("MOSTLY_").removeprefix("ALL_") for item in gguf.LlamaFileType}
    assert {key: theirs[key] for key in FILE_TYPES if key in theirs} == {
        key: name for key, name in FILE_TYPES.items() if key in theirs
    }
    assert len(FILE_TYPES.keys() & theirs.keys()) > 25


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ([], ["a.x", "a.y", "b.x"]),
        (["a.*"], ["a.x", "a.y"]),
        (["?.x"], ["a.x", "b.x"]),
        (["b.*|*.y"], ["a.y", "b.x"]),
        (["!a.*"], ["b.x"]),
        (["!a.*|b.*"], []),
        (["a.x", "b.[xz]"], ["a.x", "b.x"]),
        (["A.*"], []),
    ],
)
def test_patterns(patterns: list[str], wanted: list[str]) -> None:
    assert filter_names(["a.x", "a.y", "b.x"], patterns) == wanted


def test_words_become_models(tmp_path: Path) -> None:
    first, second = splits(tmp_path)
    other = sample(tmp_path / "other[1].gguf")
    assert find_models([str(tmp_path / "*.gguf"), str(first)]) == [first, other]
    assert find_models([str(second)]) == [second]
    assert find_models([str(other)]) == [other]  # a name with brackets that is there is no pattern
    with pytest.raises(ModelNotFound, match="no file matches"):
        find_models([str(tmp_path / "*.bin")])
    for word in (str(tmp_path / "gone.gguf"), "", "a\0b"):
        with pytest.raises(ModelNotFound):
            find_models([word])
