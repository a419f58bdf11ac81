"""Byte-level BPE from GGUF: the ids that llama.cpp gives, every text back again, and damaged vocabularies refused."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.errors import ModelFileError, ModelNotFound, RequestError, SporeError, UnsupportedModel
from sporelm.files.gguf import GgufWriter
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.tokenizers.byte_level import byte_alphabet
from sporelm.text.tokenizers.gguf_bpe import load_gguf_bpe

NAMES = ["gpt-2", "llama-bpe", "qwen2", "starcoder", "deepseek-coder"]
SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module")
def vocabs(shared: Path) -> dict[str, Tokenizer]:
    return {name: load_tokenizer(shared / f"data/vocabs/ggml-vocab-{name}.gguf") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_llama_cpps(shared: Path, vocabs: dict[str, Tokenizer], name: str) -> None:
    file = shared / f"data/vocabs/ggml-vocab-{name}.gguf"
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) == len(lines) == 47
    for text, line in zip(texts, lines, strict=True):
        ids = vocabs[name].encode(text, add_special_tokens=False, parse_special=False)
        assert ids == [int(word) for word in line.split()], repr(text)


EVERY_CHARACTER = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
MIXED = st.lists(
    st.sampled_from(["<|im_end|>", "<|eot_id|>", " ", "\n\n", "é", "e\u0301", "😶‍🌫️", "\u00a0", "\x00", "don't", "1234"])
    | EVERY_CHARACTER
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=MIXED, name=st.sampled_from(["gpt-2", "llama-bpe", "qwen2", "deepseek-coder"]), special=st.booleans())
def test_every_text_comes_back(vocabs: dict[str, Tokenizer], text: str, name: str, special: bool) -> None:
    tokenizer = vocabs[name]
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=special)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_special_tokens_are_parsed_only_if_asked(vocabs: dict[str, Tokenizer]) -> None:
    llama = vocabs["llama-bpe"]
    assert llama.encode("a<|eot_id|>", add_special_tokens=False) == [64, 128009]
    plain = llama.encode("a<|eot_id|>", add_special_tokens=False, parse_special=False)
    assert 128009 not in plain
    assert len(plain) > 4
    assert llama.decode([64, 128009], skip_special_tokens=True) == "a"


def test_bos_is_added_once(vocabs: dict[str, Tokenizer]) -> None:
    llama, gpt2 = vocabs["llama-bpe"], vocabs["gpt-2"]
    assert llama.add_bos
    assert llama.encode("Hi") == llama.encode("<|begin_of_text|>Hi") == [128000, 13347]
    # As plain text it is not BOS, so BOS is added.
    assert llama.encode("<|begin_of_text|>Hi", parse_special=False)[:2] == [128000, 27]
    assert llama.encode("") == [128000]
    assert not gpt2.add_bos
    assert gpt2.encode("Hi") == [17250]


def test_stop_ids(vocabs: dict[str, Tokenizer]) -> None:
    found = {name: sorted(tokenizer.stop_ids) for name, tokenizer in vocabs.items()}
    assert found["gpt-2"] == [50256]
    assert found["llama-bpe"] == [128001, 128009]  # <|end_of_text|>, <|eot_id|>
    assert found["qwen2"] == [151643, 151645]  # <|endoftext|>, <|im_end|>


def test_texts_that_mark_turns_are_control_whatever_their_type() -> None:
    tokens = [*BYTES, "ab", "abc", "<|im_end|>", "<|tool_response>", "<|fim_middle|>"]
    changes = {"tokens": tokens, "token_type": np.array([1] * (len(tokens) - 2) + [4, 1], np.int32)}
    tokenizer = load_gguf_bpe(metadata(**changes), "small")
    text = "a<|im_end|><|tool_response><|fim_middle|>"
    assert tokenizer.encode(text)[1:] == [258, 259, 260]
    assert set(tokenizer.encode(text, parse_special=False)).isdisjoint({258, 259, 260})
    assert tokenizer.stop_ids == {258, 259}
    # In vocabularies with that marker </s> is HTML; elsewhere it ends a text.
    for marker, kept in (("<|tool_response>", False), ("<other>", True)):
        tokens = [*BYTES, "ab", "abc", "</s>", marker]
        tokenizer = load_gguf_bpe(metadata(tokens=tokens, token_type=np.ones(len(tokens), np.int32)), "small")
        assert (tokenizer.encode("</s>") == [258]) is kept


def test_a_second_encoding_gives_the_same_and_threads_may_share(vocabs: dict[str, Tokenizer]) -> None:
    texts = [f"thread {i} says {'x' * i} — naïve\n" * 20 for i in range(40)]
    tokenizer = vocabs["qwen2"]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(tokenizer.encode, texts * 3))
    assert answers == [tokenizer.encode(text) for text in texts] * 3


def test_the_cache_of_pre_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.text.tokenizers.bpe._MAX_CACHE_BYTES", 1500)
    tokenizer = load_gguf_bpe(metadata(), "small")
    for count in range(200):
        text = f"abc {'ab' * (count % 20)} abc"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        cache = tokenizer._pipeline.model._cache
        assert 200 * len(cache) + 6 * sum(map(len, cache)) <= 1500


def test_smollm2(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2)
    assert tokenizer.vocab_size == 49152
    assert sorted(tokenizer.stop_ids) == [0, 2]
    assert not tokenizer.add_bos
    assert tokenizer.pieces(tokenizer.encode("12 <|im_end|>")) == ["1", "2", " ", "<|im_end|>"]
    assert tokenizer.encode("é \x04") == tokenizer.encode("é ")  # a warning tells of it
    with pytest.raises(RequestError, match=r"at position 1.*byte 0xF1"):
        tokenizer.encode("é\U00040000")


def test_ids_and_texts_that_cannot_be(vocabs: dict[str, Tokenizer]) -> None:
    gpt2 = vocabs["gpt-2"]
    for wrong in (-1, 50257, 2**40):
        with pytest.raises(RequestError, match=f"token id {wrong} is outside the vocabulary of 50257"):
            gpt2.decode([wrong])
    with pytest.raises(RequestError, match=r"U\+D800 at position 1"):
        gpt2.encode("a\ud800")


def test_other_kinds_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"not supported from GGUF \(got 'rwkv'; allowed 'gpt2'"):
        load_gguf_bpe(metadata(model="rwkv"), "small")
    with pytest.raises(ModelFileError, match="small: no vocabulary"):
        load_gguf_bpe(metadata(model=None), "small")
    with pytest.raises(ModelNotFound, match="does not exist"):
        load_tokenizer(tmp_path / "none.gguf")
    writer = GgufWriter(tmp_path / "odd.gguf")
    writer.add("tokenizer.ggml.model", [1, 2], "[i32]")
    writer.write()
    with pytest.raises(ModelFileError, match="model is a ndarray, not a str"):
        load_tokenizer(tmp_path / "odd.gguf")


BYTES = list(byte_alphabet().values())


def metadata(**changes: Any) -> dict[str, Any]:
    """A small vocabulary: every byte, two merged tokens and one control token; `changes` without the prefix."""
    tokens = [*BYTES, "ab", "abc", "<|im_end|>"]
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": np.array([1] * (len(tokens) - 1) + [3], np.int32),
        "merges": ["a b", "ab c"],
        "eos_token_id": 258,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | changes).items() if value is not None}


def without(character: str) -> list[str]:
    """The tokens of the small vocabulary without those of a character's bytes."""
    lacking = {byte_alphabet()[byte] for byte in character.encode()}
    tokens: list[str] = metadata()["tokenizer.ggml.tokens"]
    return [f"unused{i}" if token in lacking else token for i, token in enumerate(tokens)]


@pytest.fixture
def byte_level_without(tmp_path: Path) -> Callable[[str], Tokenizer]:
    """Makes a tokenizer of a folder over all bytes but those of a character."""

    def make(character: str) -> Tokenizer:
        vocab = {token: i for i, token in enumerate(without(character)[:257])}
        made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("a", "b")]))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        made.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer(tmp_path)

    return make


def test_small_vocabulary() -> None:
    tokenizer = load_gguf_bpe(metadata(), "small")
    assert tokenizer.encode("abcab<|im_end|>") == [257, 256, 258]
    assert tokenizer.decode([257, 256]) == "abcab"


def test_control_characters_without_a_token_are_dropped_with_a_warning(
    byte_level_without: Callable[[str], Tokenizer], caplog: pytest.LogCaptureFixture
) -> None:
    """As in llama.cpp: the pieces before and after are cut as if it were there."""
    for tokenizer in (load_gguf_bpe(metadata(tokens=without("\x07")), "small"), byte_level_without("\x07")):
        caplog.clear()
        ids = tokenizer.encode("ab\x07ab")
        assert tokenizer.decode(ids) == "abab"
        assert ids == tokenizer.encode("ab") * 2
        (record,) = caplog.records
        assert "dropped (1 of them; the first is '\\x07' at position 2)" in record.getMessage()
        with pytest.raises(RequestError, match=r"at position 1 \(got 'é', byte 0xC3\)"):
            load_gguf_bpe(metadata(tokens=without("é")), "small").encode("aé")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": "abc"}, "not an array of strings"),
        ({"tokens": [1, 2]}, "not an array of strings"),
        ({"tokens": np.array([1, 2])}, "not an array of strings"),
        ({"tokens": []}, "holds 0 tokens"),
        ({"tokens": ["a", "b", "a"]}, "2 and 0 are the same token 'a'|0 and 2 are the same"),
        ({"token_type": np.array([1, 2])}, "has 2 entries for 259 tokens"),
        ({"token_type": np.zeros(259, np.float32)}, "not an array of integers"),
        ({"token_type": "x"}, "not an array of integers"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a b", "abc"]}, "'abc' is not two tokens"),
        ({"merges": ["a b c", "d"]}, "'a b c' is not two tokens"),
        ({"merges": ["a b", "a zz"]}, "the result of 'a zz' is not a token"),
        ({"merges": ["c d"]}, "the result of 'c d' is not a token"),
        ({"merges": ["x" * 5000 + " a"]}, "is not a token"),
        ({"merges": [" ab"]}, "cannot be built: .*out of vocabulary"),
        ({"eos_token_id": 259}, "eos_token_id is 259, outside the 259 tokens"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"bos_token_id": 2**40}, "outside"),
        ({"eos_token_id": "2"}, "eos_token_id is a str, not a int"),
        ({"eos_token_id": True}, "eos_token_id is a bool, not a int"),
        ({"add_bos_token": 1}, "add_bos_token is a int, not a bool"),
        ({"pre": 3}, "pre is a int, not a str"),
        ({"pre": np.array([1, 2])}, "pre is a ndarray, not a str"),
        ({"eot_token_id": 10**6}, "eot_token_id is 1000000"),
    ],
)
def test_damaged_vocabularies(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        load_gguf_bpe(metadata(**changes), "small")
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.text("abĠ<|>", max_size=4), max_size=8),
    merges=st.lists(st.text("abĠ ", max_size=5), max_size=5),
    types=st.lists(st.integers(-1, 7), max_size=8),
    eos=st.integers(-1, 9) | st.none(),
)
def test_no_vocabulary_crashes(tokens: list[str], merges: list[str], types: list[int], eos: int | None) -> None:
    changes = {"tokens": tokens, "merges": merges, "eos_token_id": eos}
    changes["token_type"] = np.array((types + [1] * 8)[: len(tokens)], np.int32)
    with suppress(SporeError):
        tokenizer = load_gguf_bpe(metadata(**changes), "fuzzed")
        assert tokenizer.decode(tokenizer.encode("ab a<|b")) is not None
        tokenizer.encode("<|", parse_special=False)
