"""Every way to cut text for BPE: the ids of llama.cpp, the cuts of the tokenizers library, and no run away time."""

import json
import logging
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.errors import RequestError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.text import Tokenizer
from sporelm.text.tokenizers.gguf_bpe import load_gguf_bpe
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.pre_tokenizer_split import DigitGroups, PreTokenizerSplitter
from sporelm.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS, get_splitter
from unit.text.tokenizers.pre_tokenizer_cases import BYTE_LEVEL, RAW, TEXTS, raw_vocabulary

GOLDEN = json.loads(Path(__file__).with_name("pre_tokenizers.json").read_text(encoding="utf-8"))
# One name for each way to cut.
DISTINCT = {one.rules: name for name, one in PRE_TOKENIZERS.items()}


@pytest.fixture(scope="module")
def gpt2(shared: Path) -> dict[str, Any]:
    return dict(open_gguf(shared / "data/vocabs/ggml-vocab-gpt-2.gguf").metadata)


def checked(tokenizer: Tokenizer, name: str, kind: str) -> None:
    expected = {case["text"]: case["ids"] for case in GOLDEN[kind] if name in case["names"]}
    assert sorted(expected) == sorted(TEXTS)
    for text, ids in expected.items():
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == ids, (name, text)
        assert tokenizer.decode(ids) == text


def test_ids_are_llama_cpps(gpt2: dict[str, Any]) -> None:
    for name in sorted(set(DISTINCT.values()) - set(RAW)):
        checked(load_gguf_bpe(gpt2 | {"tokenizer.ggml.pre": name}, name), name, "gpt-2")


@pytest.mark.all
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_ids_of_every_name_are_llama_cpps(gpt2: dict[str, Any], name: str) -> None:
    checked(load_gguf_bpe(gpt2 | {"tokenizer.ggml.pre": name}, name), name, "gpt-2")


@pytest.mark.parametrize("name", RAW)
def test_ids_of_vocabularies_of_characters_are_llama_cpps(name: str) -> None:
    checked(load_gguf_bpe(raw_vocabulary() | {"tokenizer.ggml.pre": name}, name), name, "raw")


def test_every_golden_name_is_known() -> None:
    assert {name for cases in GOLDEN.values() for case in cases for name in case["names"]} == set(PRE_TOKENIZERS)


@cache
def library_cutter(name: str) -> Any:
    """The same rules as the library runs them; counting digits from the right, as the tokenizer.json files write it."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Sequence, Split

    counted = {
        DigitGroups(isolated=False): [r"(?=(\d{3})+(?!\d))"],
        DigitGroups(whole_word=True): [r"\d{1,3}(?=(?:\d{3})*\b)"],
        DigitGroups(r"\p{N}"): [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"],
    }
    patterns = [p for rule in PRE_TOKENIZERS[name].rules for p in counted.get(rule, [rule])]
    return Sequence([Split(Regex(pattern), "isolated") for pattern in patterns])


ANY = st.characters(exclude_categories=["Cs"])
WORDS = """'s 'RE 'ſ 1 12345 1234a \u0661\u0662 ½ _ camelCase éÉПр e\u0301 你好 、 ㄅ 한글 ไทย 👨\u200d👩 \0 / 々 ... $+
<sentinel:1> IMGIMGAZ"""
PARTS = st.sampled_from([*WORDS.split(), " ", "  ", "\n", "\r\n", "\u3000", "\u2028"])
WHOLE = st.lists(PARTS | ANY | st.sampled_from("aB 1.\n"), max_size=40).map("".join)


def cuts_agree(name: str, text: str) -> None:
    rules = PRE_TOKENIZERS[name].rules
    pieces = get_splitter(rules).split(text)
    assert "".join(pieces) == text
    if DigitGroups(whole_word=True) in rules and any(unicodedata.category(sign) in ("Nl", "No", "So") for sign in text):
        return  # some of these are word characters for the library
    assert pieces == [piece for piece, _ in library_cutter(name).pre_tokenize_str(text)], text


@settings(max_examples=250, deadline=None)
@given(text=WHOLE, name=st.sampled_from(sorted(DISTINCT.values())))
def test_cuts_are_the_librarys(text: str, name: str) -> None:
    cuts_agree(name, text)


@pytest.mark.all
@pytest.mark.parametrize("name", sorted(DISTINCT.values()))
def test_cuts_of_random_texts_are_the_librarys(name: str) -> None:
    draw = random.Random(name)
    pools = ["aAzZ \n\t'sStTrReE", "0123456789 a.", "你好 。，aЖжÉé\u0301", "\u00a0\u3000\u2028 \x85\t\n\r\x0b"]
    letters = [chr(code) for code in range(0x3100) if code]
    for _ in range(2000):
        pool = draw.choice([*pools, letters])
        text = "".join(draw.choice(pool) for _ in range(draw.randrange(1, 50)))
        cuts_agree(name, text)


def test_where_we_follow_the_models_and_not_llama_cpp() -> None:
    def cut(name: str, text: str) -> list[str]:
        return get_splitter(PRE_TOKENIZERS[name].rules).split(text)

    assert cut("kimi-k2", "camelCase ПриветМир") == ["camel", "Case", " Привет", "Мир"]
    assert cut("tekken", "ПриветМир e\u0301a") == ["Привет", "Мир", " e\u0301a"]
    assert cut("deepseek-coder", "你\u3000好") == ["你", "\u3000好"]
    assert cut("afmoe", "a  1234") == ["a", "  ", "1", "234"]
    assert cut("tiny_aya", "1234 1234a") == ["1", "234", " ", "123", "4", "a"]
    assert cut("llama3", "'ſa") == ["'ſ", "a"]


@pytest.mark.parametrize(
    "text", ["1" * 60_000 + "a", " " * 60_000 + "a", "\r\n" * 30_000, "你" * 60_000 + "A", "'" * 60_000]
)
def test_long_runs_are_cut_too(text: str) -> None:
    # Patterns that looked again and again over a run would need minutes.
    for name in DISTINCT.values():
        assert "".join(get_splitter(PRE_TOKENIZERS[name].rules).split(text)) == text


def test_thousands() -> None:
    assert PreTokenizerSplitter([DigitGroups()]).split("a1234567b12") == ["a", "1", "234", "567", "b", "12"]
    assert PreTokenizerSplitter([DigitGroups(isolated=False)]).split("a1234b123c12") == ["a1", "234b", "123c12"]
    assert PreTokenizerSplitter([r"\s+", DigitGroups(whole_word=True)]).split("1234 1234b") == [
        "1",
        "234",
        " ",
        "1234b",
    ]


def test_without_a_name_the_default_is_used_and_said_once(
    gpt2: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    unnamed = {key: value for key, value in gpt2.items() if key != "tokenizer.ggml.pre"}
    with caplog.at_level(logging.WARNING):
        tokenizers = [load_gguf_bpe(unnamed, "unnamed") for _ in range(2)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "unnamed: the file names no pre-tokenizer" in caplog.text
    checked(tokenizers[0], "default", "gpt-2")


def test_unknown_names_list_the_known(gpt2: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"not supported \(got 'qwen22'; nearest: qwen2\b") as caught:
        load_gguf_bpe(gpt2 | {"tokenizer.ggml.pre": "qwen22"}, "small")
    # One name for each way to cut.
    named = {
        PRE_TOKENIZERS[word.strip(",")].rules for word in str(caught.value).split() if word.strip(",") in PRE_TOKENIZERS
    }
    assert named == set(DISTINCT)
    assert len(str(caught.value)) < 600


def test_vocabularies_of_characters() -> None:
    tokenizer = load_gguf_bpe(raw_vocabulary() | {"tokenizer.ggml.pre": "gemma4"}, "small")
    ids = tokenizer.encode("the the\n\n\n你好é☃")
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.pieces(ids[1:]) == ["the", " the", "\n\n\n", "你好", "é", *"\N{REPLACEMENT CHARACTER}" * 3]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the the\n\n\n你好é☃"


def test_words_are_pieces_only_where_no_merge_joins_them() -> None:
    joined = raw_vocabulary()
    joined["tokenizer.ggml.tokens"] = [*joined["tokenizer.ggml.tokens"], "a▁", "a▁b"]
    joined["tokenizer.ggml.merges"] = ["a ▁", "a▁ b", *joined["tokenizer.ggml.merges"]]
    joined["tokenizer.ggml.token_type"] = np.append(joined["tokenizer.ggml.token_type"], [1, 1]).astype(np.int32)
    tokenizer = load_gguf_bpe(joined | {"tokenizer.ggml.pre": "gemma4"}, "small")
    assert tokenizer.pieces(tokenizer.encode("a b a", add_special_tokens=False)) == ["a b", " ", "a"]


def test_a_character_that_nothing_writes_is_refused() -> None:
    raw = raw_vocabulary()
    names = raw["tokenizer.ggml.tokens"]
    raw["tokenizer.ggml.tokens"] = [f"byte{i}" if name.startswith("<0x") else name for i, name in enumerate(names)]
    raw["tokenizer.ggml.token_type"] = np.ones(len(names), np.int32)
    tokenizer = load_gguf_bpe(raw | {"tokenizer.ggml.pre": "gemma4"}, "small")
    assert tokenizer.decode(tokenizer.encode("the 12", add_special_tokens=False)) == "the 12"
    with pytest.raises(RequestError, match=r"no token of the model represents a character \(got '☃'"):
        tokenizer.encode("the ☃")


def test_special_texts_that_are_not_marked_so(gpt2: dict[str, Any]) -> None:
    vocabulary = GgufVocabulary(gpt2, "gpt-2")
    assert len(vocabulary.tokens) == 50257
    assert vocabulary.special == [50256]
