"""tokenizer.model in folders: the ids that the sentencepiece package gives, and files that are damaged or hostile."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sporelm.errors import ModelFileError, SporeError, UnsupportedModel
from sporelm.text import Detokenizer, load_tokenizer
from sporelm.text.tokenizers.longest_match_splitter import LongestMatchSplitter
from sporelm.text.tokenizers.precompiled_charsmap import CharsMap, parse_charsmap
from sporelm.text.tokenizers.sentencepiece_model import parse_sentencepiece_model

MODELS = ["llama", "crossing", "unigram", "spelled"]


@pytest.fixture(scope="module")
def data(root: Path) -> Path:
    return root / "tests/data/sentencepiece"


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_texts_are_sentencepieces(data: Path, name: str) -> None:
    goldens = json.loads((data / "goldens.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(data / f"{name}.model")
    for text, ids, decoded in zip(goldens["texts"], goldens[name]["ids"], goldens[name]["decoded"], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == ids, repr(text)
        if decoded is not None:
            assert tokenizer.decode(ids) == decoded
        stream = Detokenizer(tokenizer)
        assert stream.push_all(ids) + stream.flush() == tokenizer.decode(ids)


def added(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "special": True, "lstrip": False, "rstrip": False, "single_word": False} | flags


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """A folder with the Llama-like model and JSON files: name -> object."""

    def make(model: str = "llama", **files: Any) -> Path:
        shutil.copyfile(data / f"{model}.model", tmp_path / "tokenizer.model")
        for name, value in files.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
        return tmp_path

    return make


def test_files_beside_the_model(folder: Callable[..., Path]) -> None:
    entries = {"480": added("<|im_end|>", rstrip=True), "482": added("<tool>", special=False)}
    path = folder(
        tokenizer_config={
            "tokenizer_class": "LlamaTokenizer",
            "add_eos_token": True,
            "added_tokens_decoder": entries,
            "chat_template": "{{ bos_token }}",
            "additional_special_tokens": ["<|im_end|>"],
        },
        added_tokens={"<|im_start|>": 481},
        generation_config={"eos_token_id": [2, 480]},
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == 483
    assert tokenizer.stop_ids == {2, 480}
    assert tokenizer.chat_template == "{{ bos_token }}"
    ids = tokenizer.encode("<tool>x<|im_end|> \n<|im_start|>")
    assert [ids[0], ids[1], ids[-3], ids[-2], ids[-1]] == [1, 482, 480, 481, 2]
    assert tokenizer.decode(ids) == "<s><tool> x<|im_end|><|im_start|></s>"
    plain = tokenizer.encode("<tool><|im_end|>", parse_special=False)
    assert 482 in plain
    assert 480 not in plain


def test_where_a_space_is_put_in_front(folder: Callable[..., Path]) -> None:
    old = load_tokenizer(folder(tokenizer_config={}))
    the = old.encode("the", add_special_tokens=False)
    assert old.encode("the</s>the", add_special_tokens=False) == [*the, 2, *the]
    new = load_tokenizer(folder(tokenizer_config={"legacy": False}))
    assert new.encode("the</s> the", add_special_tokens=False) == [*the, 2, *the]
    assert new.encode("the</s>the", add_special_tokens=False) != [*the, 2, *the]
    none = load_tokenizer(folder(tokenizer_config={"add_prefix_space": False}))
    assert none.encode(" the", add_special_tokens=False) == the
    assert none.decode(the) == " the"


def test_marks_of_t5(folder: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(folder("spelled", tokenizer_config={"tokenizer_class": "T5Tokenizer", "extra_ids": 3}))
    size = tokenizer.vocab_size
    assert tokenizer.encode("<extra_id_0><extra_id_2>") == [size - 1, size - 3, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config": "{"}, "is not JSON"),
        ({"tokenizer_config": {"eos_token": "<none>"}}, "eos_token '<none>' is not in the vocabulary"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "not a table of token ids"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": {}}}}, "the added token 5 has no text"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9999999999": added("x")}}}, "has the id 9999999999"),
        ({"tokenizer_config": {"legacy": "yes"}}, "legacy is 'yes'"),
        ({"tokenizer_config": {"additional_special_tokens": ["<no>"]}}, "special token '<no>' is not in"),
        ({"tokenizer_config": {"additional_special_tokens": [3]}}, "is not a list of strings"),
        ({"tokenizer_config": {"additional_special_tokens": 5}}, "is not a list of strings"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9": added("\ud800")}}}, "half of a surrogate pair"),
        ({"added_tokens": {"<x>": "1"}}, "gives '<x>' the id '1'"),
        (
            {"added_tokens": {"<x>": 481}, "tokenizer_config": {"added_tokens_decoder": {"480": added("<x>")}}},
            "same text",
        ),
    ],
)
def test_damaged_files_beside_the_model(folder: Callable[..., Path], files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        load_tokenizer(folder(**files))
    assert "\n" not in str(caught.value)


def test_other_classes_are_named(folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match="XLMRobertaTokenizer numbers its tokens otherwise"):
        load_tokenizer(folder(tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"}))


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def encode_field(field: int, data: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(data)) + data


def integer(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> bytes:
    return encode_field(1, encode_field(1, text) + number(2 << 3 | 5) + struct.pack("<f", score) + integer(3, kind))


UNKNOWN = piece(b"<unk>", kind=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it has no pieces"),
        (b"\xff" * 20, "a number that does not end"),
        (b"\x0a\x7f", "a field of 127 bytes where 0 remain"),
        (b"\x0b", "wire type 3"),
        (integer(1, 5), "a number in place of bytes"),
        (encode_field(1, encode_field(1, b"\xff")), "not UTF-8"),
        (encode_field(1, encode_field(3, b"x")), "bytes or a float in place of an integer"),
        (encode_field(1, encode_field(2, b"x")), "score of piece 0 is not a float"),
        (piece(b""), "piece 0 is ''"),
        (piece(b"a", float("nan")), "score nan"),
        (piece(b"a", kind=9), "type 9"),
        (piece(b"a"), "0 unknown pieces, not one"),
        (UNKNOWN + piece(b"<u>", kind=2), "2 unknown pieces"),
        (UNKNOWN + piece(b"a") + piece(b"a"), "2 and 1 are the same piece 'a'"),
        (encode_field(1, encode_field(1, b"x" * 70_000)), "70000 bytes, more than 65536"),
    ],
)
def test_damaged_models(data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        parse_sentencepiece_model(data, "small.model")
    assert "\n" not in str(caught.value)


def test_kinds_of_models() -> None:
    for kind, name in ((3, "word"), (4, "char"), (77, "77")):
        with pytest.raises(UnsupportedModel, match=f"of type {name} are not supported"):
            parse_sentencepiece_model(UNKNOWN + encode_field(2, integer(3, kind)), "small.model")
    with pytest.raises(UnsupportedModel, match="treat_whitespace_as_suffix"):
        parse_sentencepiece_model(UNKNOWN + encode_field(2, integer(24, 1)), "small.model")
    model = parse_sentencepiece_model(
        UNKNOWN + encode_field(2, integer(43, -1) + integer(41, -1)) + encode_field(99, b"new"), "small.model"
    )
    assert set(model.named) == {"unk_token", "eos_token"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 20), change=st.binary(min_size=1, max_size=4), cut=st.booleans())
@pytest.mark.parametrize("name", ["llama", "unigram"])
def test_no_model_crashes(data: Path, tmp_path: Path, name: str, place: int, change: bytes, cut: bool) -> None:
    whole = (data / f"{name}.model").read_bytes()
    place %= len(whole)
    file = tmp_path / "tokenizer.model"
    file.write_bytes(whole[:place] if cut else whole[:place] + change + whole[place + len(change) :])
    with suppress(SporeError):
        tokenizer = load_tokenizer(file)
        tokenizer.decode(tokenizer.encode("Hello ①② e\u0301 wörld\n<sep>"))


def test_a_small_array_with_endless_texts_is_refused() -> None:
    # Every unit's children begin at 0, so every unit is a child of each.
    units = b"".join(struct.pack("<I", i % 256 | i << 10) for i in range(256))
    with pytest.raises(ModelFileError, match="more than 1048576 prefixes"):
        parse_charsmap(struct.pack("<I", len(units)) + units + b"x\0", "small")


def test_the_longest_text_is_replaced() -> None:
    replace = CharsMap({"a": "1", "ab": "2", "abc": "3", "x": "", "bb": "4"})
    assert replace("abcabaxbbabbab") == "32142b2"


@given(
    texts=st.sets(st.text("a<]^-", min_size=1, max_size=4), min_size=1, max_size=6), text=st.text("a<]^-b", max_size=20)
)
def test_whole_texts_are_found_as_re_finds_them(texts: set[str], text: str) -> None:
    longest_first = sorted(texts, key=len, reverse=True)
    assert LongestMatchSplitter(texts).split(text) == re.split(
        "(" + "|".join(map(re.escape, longest_first)) + ")", text
    )
