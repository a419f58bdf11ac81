"""Hostile tokenizer.json files: refused in one line, before the library panics and writes a traceback of its own."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.errors import ModelFileError
from sporelm.text import load_tokenizer
from sporelm.text.tokenizers.tokenizers_library import catch_library_errors, check_tokenizer_json

PLAIN: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}


def charsmap(units: np.ndarray, texts: bytes, size: int | None = None) -> str:
    data = units.astype("<u4").tobytes()
    return base64.b64encode((len(data) if size is None else size).to_bytes(4, "little") + data + texts).decode()


def one_letter(value: int = 0) -> np.ndarray:
    """A double array that knows the letter "a" only, whose text begins at `value`."""
    units = np.zeros(768, np.uint32)
    units[0] = 256 << 10  # the root's children are counted from 256
    place = 256 ^ ord("a")
    units[place] = (512 ^ place) << 10 | 1 << 8 | ord("a")  # its own are counted from 512, and it has a value
    units[512] = value | 1 << 31
    return units


def precompiled(text: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}}


def template(*single: Any, **special: Any) -> dict[str, Any]:
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}}


def bpe(**changes: Any) -> dict[str, Any]:
    return {"model": PLAIN["model"] | changes}


HOSTILE = {
    "charsmap of nothing": (precompiled(""), "precompiled_charsmap is damaged"),
    "charsmap of zeros": (precompiled("AAAA"), "precompiled_charsmap is damaged"),
    "charsmap without units": (precompiled("AAAAAA=="), "precompiled_charsmap is damaged"),
    "charsmap that is short": (precompiled(charsmap(one_letter(), b"b\0", 9999)), "damaged"),
    "charsmap of half a block": (precompiled(charsmap(one_letter()[:300], b"b\0")), "damaged"),
    "charsmap that points outside": (precompiled(charsmap(one_letter(7), b"b\0")), "damaged"),
    "charsmap that points into a letter": (precompiled(charsmap(one_letter(1), "é\0".encode())), "damaged"),
    "charsmap without an end": (precompiled(charsmap(one_letter(), b"b")), "damaged"),
    "charsmap that is not UTF-8": (precompiled(charsmap(one_letter(), b"\xff\0")), "damaged"),
    "charsmap in a sequence": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, precompiled("AAAA")["normalizer"]]}},
        "damaged",
    ),
    "empty replace": (
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        "normalizer's Replace is empty",
    ),
    "empty prepend": ({"normalizer": {"type": "Prepend", "prepend": ""}}, "normalizer's Prepend is empty"),
    "length 0": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "FixedLength is 0"),
    "replaces an empty match": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "x"}},
        "the library fails on the text 'a'",
    ),
    "strip of the end": (
        {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 2}},
        "got stop 2; allowed 0",
    ),
    "template without the text": (template(), "does not contain the text"),
    "pair with an unknown token": (
        {
            "post_processor": template({"Sequence": {"id": "A", "type_id": 0}})["post_processor"]
            | {"pair": [{"SpecialToken": {"id": "<x>", "type_id": 0}}]}
        },
        "adds '<x>', which is not in its special_tokens",
    ),
    "unknown special token": (
        template({"SpecialToken": {"id": "<x>", "type_id": 0}}),
        "adds '<x>', which is not in its special_tokens",
    ),
    "text B": (template({"Sequence": {"id": "B", "type_id": 0}}), "must name it 'A'"),
    "merge without a result": (bpe(merges=[["b", "a"]]), "the result of the merge 'b a' is not a token"),
    "prefix that a merge lacks": (
        bpe(continuing_subword_prefix="####"),
        "the result of the merge 'a b' is not a token",
    ),
    "prefix that cuts a letter": (
        bpe(vocab={"a": 0, "é": 1, "a\xa9": 2}, merges=[["a", "é"]], continuing_subword_prefix="x"),
        "the result of the merge 'a é' is not a token",
    ),
}


# Refused by the library, in words of Rust's.
REFUSED = {
    "model of another kind": (
        {"model": {"type": "Foo"}},
        r"model: the type is not supported \(got 'Foo'; allowed BPE, ",
    ),
    "model that is a text": ({"model": "x"}, r"model: it is not an object \(got a string\)"),
    "merge of a number": (bpe(merges=[1]), "model BPE: merges is not a list of pairs"),
    "vocabulary of a list": (bpe(vocab=[]), r"model BPE: a value is wrong \(got a list; allowed an object\)"),
    "normalizer": ({"normalizer": {"type": "Foo"}}, r"normalizer: the type is not supported \(got 'Foo'; allowed Bert"),
    "normalizer in a sequence": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Foo"}]}},
        r"normalizer: the type is not supported \(got 'Foo'",
    ),
    "regular expression": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}},
        "pre_tokenizer Split: a regular expression is wrong: end pattern with unmatched parenthesis",
    ),
    "behavior": (
        {"pre_tokenizer": {"type": "Punctuation", "behavior": "Foo"}},
        r"pre_tokenizer Punctuation: a value is wrong \(got 'Foo'; allowed 'Removed', ",
    ),
    "post-processor": ({"post_processor": {"type": "ByteLevel"}}, "post_processor ByteLevel: a field is missing"),
    "decoder": ({"decoder": {"type": "Foo"}}, "decoder: the type is not supported"),
    "added token": ({"added_tokens": [{"content": "x"}]}, "added_tokens: the field 'id' is missing"),
    "version": ({"version": "9"}, r"version: the version is unknown \(got '9'; allowed '1.0'\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_part_in_our_words(tmp_path: Path, name: str) -> None:
    change, message = REFUSED[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN | change), encoding="utf-8")
    with pytest.raises(ModelFileError, match=message) as caught:
        load_tokenizer(tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    for word in ("untagged", "enum", "instantiate", "at line", "`", "Oniguruma", "usize"):
        assert word not in text


def test_truncation_and_padding_are_left_out_before_the_library_uses_them(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 9}
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN | {"truncation": truncation}), encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("abab") == [2, 2]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_panics_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    change, message = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN | change), encoding="utf-8")
    with pytest.raises(ModelFileError, match=message) as caught:
        load_tokenizer(tmp_path).encode("a text")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "[" * 100_000, '"a"'], ids=["empty", "list", "open", "deep", "text"]
)
def test_a_file_without_an_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"is not JSON|holds a (list|str)"):
        load_tokenizer(tmp_path)


def test_a_charsmap_that_can_be_read_is_used(tmp_path: Path) -> None:
    spec = PLAIN | precompiled(charsmap(one_letter(2), b"x\0b\0"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("ab") == [1, 1]


def test_merges_may_be_lines_and_have_a_prefix() -> None:
    vocab = {"a": 0, "##b": 1, "ab": 2}
    check_tokenizer_json(bpe(vocab=vocab, merges=["a ##b"], continuing_subword_prefix="##"), "x")


def test_any_failure_of_the_library_is_ours() -> None:
    class Panic(BaseException):
        """As the library's own, which it does not export."""

    with pytest.raises(ModelFileError, match="x cannot be read: first second"), catch_library_errors("x"):
        raise Panic("first\nsecond")
    with pytest.raises(KeyboardInterrupt), catch_library_errors("x"):
        raise KeyboardInterrupt
