"""set-meta: kinds, arrays, what is protected, and what the gguf package then reads."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_models import META, contents, write_model
from sporelm.errors import RequestError
from sporelm.files.gguf import open_gguf
from sporelm.tools.lazy_model import LazyModel, open_lazy_model
from sporelm.tools.metadata_json import parse_metadata
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.tools.set_meta import describe_changes, parse_assignment, set_meta


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LazyModel:
    return open_lazy_model(
        write_model(tmp_path_factory.mktemp("meta") / "m.gguf", meta=META | {"x.f": 0.5, "x.flag": True})
    )


def changed(model: LazyModel, *words: str, delete: tuple[str, ...] = (), force: bool = False) -> LazyModel:
    return set_meta(model, [parse_assignment(word) for word in words], delete, force=force)


@pytest.mark.parametrize(
    ("word", "kind", "value"),
    [
        ("n.a:u32=4", "u32", 4),
        ("n.a:u8=0xff", "u8", 255),
        ("n.a:i64=-5", "i64", -5),
        ("n.a:f32=0.5", "f32", 0.5),
        ("n.a:f64=1e-3", "f64", 1e-3),
        ("n.a:bool=true", "bool", True),
        ("n.a:str=17", "str", "17"),
        ("n.a:str=a=b:c", "str", "a=b:c"),
        ("n.a=", "str", ""),
        ("n.a=17", "u32", 17),
        ("n.a=-17", "i32", -17),
        ("n.a=99999999999", "u64", 99_999_999_999),
        ("n.a=1.5", "f32", 1.5),
        ("n.a=1e3", "f32", 1000.0),
        ("n.a=false", "bool", False),
        ("n.a=nan", "str", "nan"),
        ("n.a=1_000", "str", "1_000"),
        ("n.a=größer", "str", "größer"),
        ("n.a:[str]=a,b", "[str]", ["a", "b"]),
        ('n.a:[str]=["a,b","c"]', "[str]", ["a,b", "c"]),
        ("n.a:[u32]=1,2,3", "[u32]", [1, 2, 3]),
        ("n.a:[u32]=", "[u32]", []),
        ("n.a:[f32]=0.5, 2", "[f32]", [0.5, 2.0]),
        ("n.a:[bool]=true,false", "[bool]", [True, False]),
        ("n.a:[[i32]]=[[1,2],[]]", "[[i32]]", [[1, 2], []]),
        ("llama.context_length=4096", "u32", 4096),
        ("general.name=42", "str", "42"),
        ("x.f=2", "f32", 2.0),
        ("tokenizer.ggml.tokens=x,y,z", "[str]", ["x", "y", "z"]),
        ("general.alignment:u32=64", "u32", 64),
    ],
)
def test_values(model: LazyModel, word: str, kind: str, value: object, tmp_path: Path) -> None:
    key = word.partition("=")[0].partition(":")[0]
    save_models([OutputFile(tmp_path / "n.gguf", changed(model, word))])
    with open_gguf(tmp_path / "n.gguf") as found:
        assert found.kinds[key] == kind
        got = found.metadata[key]
        got = got.tolist() if isinstance(got, np.ndarray) else got
        got = [item.tolist() for item in got] if kind == "[[i32]]" else got
        assert got == value
    if kind != "[[i32]]":  # which the gguf package cannot read
        reader = gguf.GGUFReader(tmp_path / "n.gguf")
        assert reader.fields[key].contents() == value or value == []
    assert contents(tmp_path / "n.gguf") == contents(model.paths[0])


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("n.a", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("n.a:u7=3", "there is no kind 'u7'"),
        ("n.a:[[u7]]=3", "there is no kind"),
        ("n.a:u8=256", "does not fit kind u8"),
        ("n.a:u8=-1", "does not fit kind u8"),
        ("n.a:u32=1.5", "is not a whole number"),
        ("n.a:u32=x", "is not a whole number"),
        ("n.a:f32=x", "is not a number"),
        ("n.a:bool=yes", "neither true nor false"),
        ("n.a:[u8]=1,x", "is not a whole number"),
        ("n.a:[u8]=[1", "is not JSON"),
        ("n.a:[u8]=[300]", "does not fit"),
        ("n.a:[[u8]]={}", "not a JSON array"),
        ("n.a:[u8]=[[1]]", "does not fit"),
        ("x.flag=3", "neither true nor false"),
        ("split.no:u16=3", "'spore gguf split' and 'merge' set it"),
        ("n.a:f32=1e400", "does not fit"),
        ("n.a:f32=3.5e38", "does not fit"),
        ("n.a:f64=nan", "does not fit f64"),
        ("n.a:f64=-inf", "does not fit f64"),
        ("n.a=1e400", "does not fit"),
        ("n.a:[f32]=1,1e39", "does not fit"),
        ("n.a:[f64]=[1, NaN]", "does not fit"),
        ("n.a:[[f64]]=[[1], [1e400]]", "does not fit"),
        ("n a=3", "spaces or control characters"),
        ("n\na:u32=3", "spaces or control characters"),
        ("n\x1b[1m=3", "spaces or control characters"),
        ("general.alignment:u32=48", "a power of two"),
        ("general.alignment:u64=64", "must be a u32"),
        ("general.architecture=qwen2", "must match the tensors; --force"),
        ("llama.block_count=3", "must match the tensors; --force"),
        ("llama.context_length:u64=64", "which loaders ask for"),
        ("tokenizer.ggml.tokens=x,y", "has 3 elements, the new one 2; --force"),
        ("tokenizer.ggml.scores:[f32]=1", "has 3 elements"),
    ],
)
def test_values_that_are_refused(model: LazyModel, word: str, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        changed(model, word)


def changed_by_file(model: LazyModel, text: str) -> LazyModel:
    return set_meta(model, parse_metadata(text, "keys.json"))


@pytest.mark.parametrize(
    ("key", "entry", "kind", "value"),
    [
        ("n.a", 17, "u32", 17),
        ("n.a", -17, "i32", -17),
        ("n.a", 1.5, "f32", 1.5),
        ("n.a", True, "bool", True),
        ("n.a", "17", "str", "17"),
        ("n.a", ["a", "größer"], "[str]", ["a", "größer"]),
        ("n.a", [1, 2], "[i32]", [1, 2]),
        ("n.a", [True, False], "[bool]", [True, False]),
        ("n.a", {"type": "u64", "value": 5}, "u64", 5),
        ("n.a", {"type": "f64", "value": 2}, "f64", 2.0),
        ("n.a", {"type": "[u8]", "value": [1, 255]}, "[u8]", [1, 255]),
        ("x.f", 2, "f32", 2.0),
        ("x.flag", False, "bool", False),
        ("general.name", "42", "str", "42"),
        ("llama.context_length", 4096, "u32", 4096),
        ("tokenizer.ggml.scores", [1, 2, 0.5], "[f32]", [1.0, 2.0, 0.5]),
    ],
)
def test_values_of_a_json_file(
    model: LazyModel, key: str, entry: object, kind: str, value: object, tmp_path: Path
) -> None:
    save_models([OutputFile(tmp_path / "n.gguf", changed_by_file(model, json.dumps({key: entry})))])
    with open_gguf(tmp_path / "n.gguf") as found:
        assert found.kinds[key] == kind
    field = gguf.GGUFReader(tmp_path / "n.gguf").fields[key]
    assert field.contents() == value
    names = {"UINT32": "u32", "UINT64": "u64", "UINT8": "u8", "INT32": "i32", "FLOAT32": "f32", "FLOAT64": "f64"}
    names |= {"STRING": "str", "BOOL": "bool"}
    assert names[field.types[-1].name] == kind.strip("[]")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"n.a": 1, "n.a": 2}', "'n.a' appears twice"),
        ("[1]", r"not an object \(got list; allowed an object of KEY: VALUE\)"),
        ('{"": 1}', "the key is empty"),
        ('{"n.a": null}', r"not a metadata value \(got null"),
        ('{"n.a": {"value": 3}}', "not a metadata value"),
        ('{"n.a": {"type": 3, "value": 3}}', "not a metadata value"),
        ('{"n.a": {"type": "u32", "value": {}}}', "not a metadata value"),
        ('{"n.a": {"type": "u7", "value": 3}}', r"unknown type \(got 'u7'; allowed "),
        ('{"n.a": {"type": "u8", "value": 300}}', "does not fit"),
        ('{"n.a": {"type": "u32", "value": 1.5}}', "does not fit"),
        ('{"n.a": {"type": "u32", "value": true}}', "true is not a u32"),
        ('{"n.a": {"type": "[bool]", "value": [1]}}', "1 is not a bool"),
        ('{"n.a": {"type": "str", "value": 3}}', "does not fit"),
        ('{"n.a": {"type": "[u8]", "value": [[1], [2, 3]]}}', "does not fit"),
        ('{"n.a": []}', "give its kind"),
        ('{"n.a": [1, "x"]}', "give its kind"),
        ('{"n.a": NaN}', "does not fit f32"),
        ('{"x.flag": 1}', "1 is not a bool"),
        ('{"llama.context_length": "long"}', "does not fit"),
        ('{"llama.block_count": 3}', "must match the tensors; --force"),
        ('{"split.no": 3}', "'spore gguf split' and 'merge' set it"),
    ],
)
def test_json_files_that_are_refused(model: LazyModel, text: str, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        changed_by_file(model, text)


def test_force_changes_what_is_needed(model: LazyModel) -> None:
    done = changed(model, "llama.block_count=3", delete=("llama.context_length",), force=True)
    assert done.value("llama.block_count") == 3
    assert done.value("llama.context_length") is None
    assert changed(model, "llama.block_count=2").value("llama.block_count") == 2  # no change


def test_delete(model: LazyModel) -> None:
    done = changed(model, delete=("x.*",))
    assert list(done.metadata) == list(META)
    for pattern, match in (("llama.block_count", "is needed"), ("general.*", "is needed"), ("y.*", "no metadata key")):
        with pytest.raises(RequestError, match=match):
            changed(model, delete=(pattern,))


def test_place_of_keys_and_what_changed(model: LazyModel) -> None:
    done = changed(model, "general.name=other", "x.new=1", "llama.block_count=2", delete=("x.f",))
    keys = list(done.metadata)
    assert keys.index("general.name") == list(META).index("general.name")
    assert keys[-1] == "x.new"
    assert describe_changes(model.metadata, done.metadata) == {
        "x.f": "deleted",
        "general.name": "changed",
        "x.new": "added",
    }


def test_first_file_of_a_split_alone(tmp_path: Path) -> None:
    from functools import partial

    from sporelm.tools import split_model

    whole = write_model(tmp_path / "m.gguf")
    outputs = split_model.split_model(
        open_lazy_model(whole), tmp_path / "p", partial(split_model.group_by_count, maximum=10)
    )
    first = save_models(outputs)[0].path
    alone = open_lazy_model(first, alone=True)
    assert len(alone.tensors) == 10
    save_models([OutputFile(first, changed(alone, "general.name=other"))], force=True)
    assert contents(first) == contents(whole)
    with open_gguf(first) as found:
        assert found.metadata["general.name"] == "other"
    with pytest.raises(RequestError, match="says how the model is split"):
        changed(alone, delete=("split.*",))
