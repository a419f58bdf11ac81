"""SentencePiece and WordPiece vocabularies from GGUF: the ids that llama.cpp gives, and damaged ones refused."""

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.errors import ModelFileError, SporeError
from sporelm.text import Detokenizer, Tokenizer, load_tokenizer
from sporelm.text.tokenizers.gguf_sentencepiece import load_gguf_sentencepiece
from sporelm.text.tokenizers.gguf_unigram import load_gguf_unigram
from sporelm.text.tokenizers.gguf_wordpiece import load_gguf_wordpiece
from sporelm.text.tokenizers.sentencepiece_bpe import SentencePieceBpe

NAMES = ["llama-spm", "phi-3", "bert-bge"]
SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module")
def vocabs(shared: Path) -> dict[str, Tokenizer]:
    return {name: load_tokenizer(shared / f"data/vocabs/ggml-vocab-{name}.gguf") for name in NAMES}


@pytest.fixture(scope="module")
def goldens(root: Path) -> dict[str, Any]:
    return json.loads((root / "tests/data/sentencepiece/llama_cpp.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_models_authors(shared: Path, vocabs: dict[str, Tokenizer], name: str) -> None:
    file = shared / f"data/vocabs/ggml-vocab-{name}.gguf"
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) == len(lines) == 47
    for text, line in zip(texts, lines, strict=True):
        ids = vocabs[name].encode(text, add_special_tokens=False, parse_special=False)
        assert ids == [int(word) for word in line.split()], repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_texts_are_llama_cpps(vocabs: dict[str, Tokenizer], goldens: dict[str, Any], name: str) -> None:
    tokenizer, golden = vocabs[name], goldens[name]
    for i, text in enumerate(goldens["texts"]):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == golden["special"][i], repr(text)
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == golden["plain"][i], repr(text)
        # llama.cpp keeps the space in front of WordPiece texts; Hugging Face does not, and nor do we.
        assert tokenizer.decode(ids) == golden["text"][i].removeprefix(" " if name == "bert-bge" else ""), repr(text)
        stream = Detokenizer(tokenizer)
        assert stream.push_all(ids) + stream.flush() == tokenizer.decode(ids), repr(text)


def test_what_is_put_around_texts(vocabs: dict[str, Tokenizer]) -> None:
    llama, bert = vocabs["llama-spm"], vocabs["bert-bge"]
    assert llama.encode("Hi") == llama.encode("<s>Hi") == [1, 6324]
    assert llama.encode("") == [1]
    assert llama.encode("<s>Hi", parse_special=False)[:2] == [1, 529]
    assert llama.decode([1, 6324], skip_special_tokens=True) == "Hi"
    assert llama.decode([6324], continues=True) == " Hi"
    assert (llama.bos_id, llama.eos_id, llama.stop_ids) == (1, 2, {2})
    assert bert.encode("Hi") == [101, 7632, 102]
    assert bert.decode([101, 7632, 102], skip_special_tokens=True) == "hi"


def test_bytes_come_together_to_letters(vocabs: dict[str, Tokenizer]) -> None:
    llama = vocabs["llama-spm"]
    stream = Detokenizer(llama)
    pieces = [stream.push(token) for token in llama.encode("a🦙b", add_special_tokens=False)]
    assert pieces == ["a", "", "", "", "🦙", "b"]
    assert llama.pieces([13, 243]) == ["\n", "\N{REPLACEMENT CHARACTER}"]


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT | st.text(" a▁\nbé1=", max_size=80), special=st.booleans())
def test_every_text_comes_back(vocabs: dict[str, Tokenizer], text: str, special: bool) -> None:
    tokenizer = vocabs["llama-spm"]
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=special)
    assert tokenizer.decode(ids) == text.replace("▁", " ")
    stream = Detokenizer(tokenizer)
    assert stream.push_all(ids) + stream.flush() == tokenizer.decode(ids)


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.sampled_from([1005, 1012, 1055, 2128, 29, 1029, 2003, 5, 1010, 101]) | st.integers(0, 30521)))
def test_cleaned_text_streams(vocabs: dict[str, Tokenizer], ids: list[int]) -> None:
    stream = Detokenizer(vocabs["bert-bge"])
    assert "".join([stream.push(token) for token in ids]) + stream.flush() == vocabs["bert-bge"].decode(ids)


def merged_by_definition(text: str, scores: dict[str, float]) -> list[str]:
    symbols = list(text)
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        i = -max(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


LETTERS = "▁abc="


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.dictionaries(st.text(LETTERS, min_size=1, max_size=5), st.integers(-3, 3), max_size=25),
    text=st.text(LETTERS + "é", max_size=90),
)
def test_cutting_and_the_heap_change_nothing(tokens: dict[str, int], text: str) -> None:
    """Scores with many ties, tokens that cross spaces, words short and long."""
    ids = {token: i for i, token in enumerate(tokens)}
    scores = {token: float(score) for token, score in tokens.items()}
    model = SentencePieceBpe(ids, scores, lambda character: (1000 + ord(character),))
    expected = [
        token
        for symbol in merged_by_definition(text, {token: score for token, score in scores.items() if len(token) > 1})
        for token in ([ids[symbol]] if symbol in ids else [1000 + ord(symbol)])
    ]
    assert model.encode(text) == expected
    assert [
        token
        for symbol in model._merge_by_heap(text)
        for token in ([ids[symbol]] if symbol in ids else [1000 + ord(symbol)])
    ] == expected


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def spm(**changes: Any) -> dict[str, Any]:
    """A small SentencePiece vocabulary; `changes` without the prefix of their keys."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "ab", "▁ab", "<tool>", "<|im_end|>"]
    found = {
        "tokens": tokens,
        "scores": np.array([0.0] * 259 + [-5, -6, -7, -1, -2, -1000, -1000], np.float32),
        "token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 5 + [4, 1], np.int32),
        "model": "llama",
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | changes).items() if value is not None}


def test_small_vocabulary() -> None:
    tokenizer = load_gguf_sentencepiece(spm(), "small")
    assert tokenizer.encode("ab ab") == [1, 263, 263]
    assert tokenizer.encode("<tool>ab", parse_special=False) == [1, 264, 263]  # user-defined: always a token
    assert tokenizer.encode("ab<|im_end|>") == [1, 263, 265]  # its type is wrong, its text is known
    assert tokenizer.stop_ids == {2, 265}
    assert tokenizer.encode("é", add_special_tokens=False) == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode([3 + 0xC3, 3 + 0xA9, 264]) == "é<tool>"


def test_flags_of_the_file() -> None:
    tokenizer = load_gguf_sentencepiece(spm(add_space_prefix=False, add_bos_token=False, add_eos_token=True), "small")
    assert tokenizer.encode("ab ab") == [262, 263, 2]
    assert tokenizer.decode([263]) == " ab"


def test_tokens_that_take_spaces() -> None:
    tokenizer = load_gguf_sentencepiece(spm() | {"general.name": "My Phi-3"}, "small")
    assert tokenizer.encode("<|im_end|> \n ab") == [1, 265, 263]
    assert tokenizer.encode("<s>  b", add_special_tokens=False) == [1, 259, 259, 259, 261]


class Name(str):
    """A model's name that counts how often it is looked through."""

    looks = 0

    def lower(self) -> str:
        Name.looks += 1
        return super().lower()


def test_a_name_is_looked_through_once() -> None:
    # A hostile one may have 64 MiB, beside a hundred thousand special tokens.
    load_gguf_sentencepiece(spm() | {"general.name": Name("Phi-3")}, "small")
    assert Name.looks == 1


def test_without_bytes_there_is_the_unknown_token() -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a"]
    changes = {"tokens": tokens, "scores": [0.0] * 5, "token_type": np.array([2, 3, 3, 1, 1], np.int32)}
    tokenizer = load_gguf_sentencepiece(spm(**changes), "small")
    assert tokenizer.encode("aéééa", add_special_tokens=False) == [3, 4, 0, 4]


def bert(**changes: Any) -> dict[str, Any]:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello", "▁,", "ly", "▁a", "b"]
    found = {
        "tokens": tokens,
        "token_type": np.array([3, 3, 3, 3, 1, 1, 1, 1, 1], np.int32),
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "model": "bert",
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | changes).items() if value is not None}


def test_small_word_pieces() -> None:
    tokenizer = load_gguf_wordpiece(bert(), "small")
    assert tokenizer.encode("Hélloly, zz") == [2, 4, 6, 5, 1, 3]
    assert tokenizer.encode("[SEP]", add_special_tokens=False) == [3]
    assert tokenizer.encode("Hello", add_special_tokens=False) == [4]
    cased = load_gguf_wordpiece(bert(**{"normalizer.lowercase": False}), "small")
    assert cased.encode("Hello hello héllo", add_special_tokens=False) == [1, 4, 1]


def t5(**changes: Any) -> dict[str, Any]:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁ab", "ab"]
    found = {
        "tokens": tokens,
        "scores": np.array([0, 0, 0, -2, -3, -3.5, -4, -6], np.float32),
        "token_type": np.array([3, 3, 2, 1, 1, 1, 1, 1], np.int32),
        "add_space_prefix": True,
        "model": "t5",
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | changes).items() if value is not None}


def test_small_unigram() -> None:
    tokenizer = load_gguf_unigram(t5(), "small")
    assert tokenizer.encode("ab") == [6, 1]
    assert tokenizer.encode("abab?!a", add_special_tokens=False) == [6, 7, 2, 4]
    assert load_gguf_unigram(t5(remove_extra_whitespaces=True), "small").encode("  ab   ab ") == [6, 6, 1]


MAKERS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any], str], Tokenizer]]] = {
    "spm": (spm, load_gguf_sentencepiece),
    "bert": (bert, load_gguf_wordpiece),
    "t5": (t5, load_gguf_unigram),
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("spm", {"tokens": None}, "tokens is missing"),
        ("spm", {"tokens": ["a", "a"]}, "same token 'a'"),
        ("spm", {"scores": None}, "scores is missing"),
        ("spm", {"scores": np.zeros(5, np.float32)}, "scores has 5 entries for 266 tokens"),
        ("spm", {"scores": "x"}, "scores is not an array of numbers"),
        ("spm", {"scores": ["x"] * 266}, "scores is not an array of numbers"),
        ("spm", {"scores": np.full(266, np.nan, np.float32)}, "scores 0 is not a number"),
        ("spm", {"scores": np.full(266, 0x7F800001, np.uint32).view(np.float32)}, "scores 0 is not a number"),
        ("spm", {"token_type": np.zeros(3, np.int32)}, "token_type has 3 entries"),
        ("spm", {"add_space_prefix": 1}, "add_space_prefix is a int, not a bool"),
        ("spm", {"bos_token_id": 266}, "bos_token_id is 266, outside"),
        ("spm", {"tokens": ["x" * 20_000], "scores": [0.0], "token_type": [1]}, "20000 characters, more than 16384"),
        ("bert", {"unknown_token_id": None}, "it has no unk_token"),
        ("bert", {"bos_token_id": None}, "it has no bos_token"),
        ("bert", {"normalizer.lowercase": "yes"}, "normalizer.lowercase is a str"),
        ("t5", {"scores": None}, "scores is missing"),
        ("t5", {"precompiled_charsmap": "x"}, "not an array of bytes"),
        ("t5", {"precompiled_charsmap": np.arange(3, dtype=np.uint8)}, "precompiled_charsmap is damaged"),
        ("t5", {"precompiled_charsmap": np.full(900, 255, np.uint8)}, "precompiled_charsmap is damaged"),
        ("t5", {"tokens": ["x" * 1025], "token_type": None}, "tokens are too long: one has 1025 characters"),
        (
            "t5",
            {"tokens": [f"{i:04}" + "x" * 1000 for i in range(600)], "token_type": None},
            "tokens are too long: their prefixes",
        ),
    ],
)
def test_damaged_vocabularies(kind: str, changes: dict[str, Any], message: str) -> None:
    make, build = MAKERS[kind]
    with pytest.raises(ModelFileError, match=message) as caught:
        build(make(**changes), "small")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["spm", "bert", "t5"]),
    tokens=st.lists(st.text("ab▁<|>é ", max_size=4) | st.sampled_from(BYTES), max_size=9),
    scores=st.lists(st.floats(width=32), min_size=9, max_size=9),
    types=st.lists(st.integers(-1, 7), min_size=9, max_size=9),
    charsmap=st.binary(max_size=60) | st.binary(max_size=1200).map(lambda data: (1024).to_bytes(4, "little") + data),
    unknown=st.integers(-1, 9) | st.none(),
)
def test_no_vocabulary_crashes(
    kind: str, tokens: list[str], scores: list[float], types: list[int], charsmap: bytes, unknown: int | None
) -> None:
    make, build = MAKERS[kind]
    changes = {
        "tokens": tokens,
        "scores": np.array(scores[: len(tokens)], np.float32),
        "token_type": np.array(types[: len(tokens)], np.int32),
        "precompiled_charsmap": np.frombuffer(charsmap, np.uint8),
        "unknown_token_id": unknown,
        "bos_token_id": 0,
        "seperator_token_id": 0,
    }
    with suppress(SporeError):
        tokenizer = build(make(**changes), "fuzzed")
        for special in (True, False):
            ids = tokenizer.encode("ab a<|b é\x00▁▁▁", parse_special=special)
            assert all(0 <= token < tokenizer.vocab_size for token in ids)
            tokenizer.decode(ids)
