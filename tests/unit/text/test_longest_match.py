"""RWKV's vocabularies: the longest token at each place of a text's bytes; with --all, as llama.cpp cuts it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_logits import load_peer_vocab
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.text import Detokenizer
from sporelm.text.exchange.hf_files import files_of_metadata
from sporelm.text.gguf_rwkv import rwkv_of_gguf
from sporelm.text.load import load_tokenizer
from sporelm.text.longest_match import LongestMatch, escaped, unescaped
from sporelm.weights.gguf import GgufWriter

CONTROL, NORMAL, UNUSED = 3, 1, 5
BYTES = [bytes([byte]) for byte in range(256)]
WORDS = ["th", "the", "ther", " the", " there", "\n\n", "\t\t", "é", "日", "日本", "'s", '""', "\\n", "User:", "[PAD"]
HALVES = [b"\xe6\x97", b"\xc3\xa9\xc3", b"\xf0\x9f", b"\xa5\xe6\x9c\xac"]  # tokens that end or begin within a letter
TEXTS = [
    *("", "the theremin is there", ' \n\n\t\t\tUser: Hi\'s "x"', "日本語 é\u0301 🙂🙃", "a\\nb \\x41 \x00\x7f"),
    *("ab\r\nab\r", "[PAD300] [PAD9]", "ther" * 9 + "t", "éé日本日", "<s>no<s>"),
]


def metadata(**changes: Any) -> dict[str, Any]:
    """A vocabulary as llama.cpp's converter writes it: a control token, bytes, other tokens, ids without one."""
    words = [word.encode() for word in WORDS] + HALVES
    tokens = ["<s>", *(escaped(token) for token in (*BYTES, *words))]
    types = [CONTROL, *[NORMAL] * (len(tokens) - 1), UNUSED, UNUSED]
    tokens += [f"[PAD{len(tokens) + more}]" for more in range(2)]
    found = {"general.architecture": "rwkv7", "tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens}
    named = {f"tokenizer.ggml.{kind}_token_id": token for kind, token in (("bos", 0), ("eos", 0), ("eot", 262))}
    return found | {"tokenizer.ggml.token_type": np.array(types, np.int32)} | named | changes


def expected(tokens: dict[bytes, int], data: bytes) -> list[int]:
    """Every length tried, longest first."""
    found, at = [], 0
    while at < len(data):
        length = next(n for n in range(len(data) - at, 0, -1) if data[at : at + n] in tokens)
        found.append(tokens[data[at : at + length]])
        at += length
    return found


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=40), st.text(max_size=60))
def test_the_longest_token_at_each_place(more: list[bytes], text: str) -> None:
    more += [text.encode()[at : at + 3] for at in range(0, len(text), 4)]
    tokens = {token: number for number, token in enumerate([*BYTES, *more]) if token}
    assert LongestMatch(tokens).ids(text) == expected(tokens, text.encode())


@given(st.binary(max_size=40))
def test_tokens_are_written_as_python_writes_bytes(token: bytes) -> None:
    assert unescaped(escaped(token)) == token


def test_letters_that_are_not_escaped() -> None:
    assert unescaped("日\\x4aé\\q\\\\n") == "日Jéq\\n".encode()
    assert unescaped("\\") == b"\\"


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back(text: str) -> None:
    tokenizer = load_tokenizer_of(metadata())
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert 0 not in ids  # letters do not forge a control token
    stream = Detokenizer(tokenizer)
    assert stream.push_all(ids) + stream.flush() == text


def load_tokenizer_of(values: dict[str, Any]) -> Any:
    return rwkv_of_gguf(values, "m.gguf")


def test_control_tokens_and_ends() -> None:
    tokenizer = load_tokenizer_of(metadata())
    assert tokenizer.encode("<s>a") == [0, 1 + ord("a")]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (0, 0, False)
    assert tokenizer.stop_ids == {0, 262}  # and the end of a turn, two line feeds
    assert tokenizer.decoding.token_bytes(262) == b"\n\n"


def test_bytes_without_a_token_are_refused() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][1 + ord("z")] = "zz"
    with pytest.raises(RequestError, match="'z' at position 1, which this model's vocabulary cannot write"):
        load_tokenizer_of(given).encode("az")


def test_damaged_vocabularies_are_refused() -> None:
    with pytest.raises(ModelFileError, match="are the same token"):
        load_tokenizer_of(metadata(**{"tokenizer.ggml.tokens": ["a", "a"]}))
    with pytest.raises(ModelFileError, match="bos_token_id is 900, outside"):
        load_tokenizer_of(metadata(**{"tokenizer.ggml.bos_token_id": 900}))


def test_it_cannot_become_a_tokenizer_json() -> None:
    with pytest.raises(UnsupportedModel, match=r"'rwkv' cannot become a tokenizer\.json"):
        files_of_metadata(metadata(), "m.gguf")


@pytest.mark.all
def test_ids_are_llama_cpps(root: Path, tmp_path: Path) -> None:
    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    file, kinds = tmp_path / "vocab.gguf", {list: "[str]", np.ndarray: "[i32]", int: "u32", str: "str"}
    writer = GgufWriter(file)
    for key, value in metadata().items():
        writer.add(key, value, kinds[type(value)])
    writer.write()
    peer_vocab, tokenizer = load_peer_vocab(root), load_tokenizer(file)
    with peer_vocab.PeerVocab(peer_vocab.load_library(Path(place)), file) as peer:
        for text in TEXTS:
            assert tokenizer.encode(text) == peer.encode(text, parse_special=True), repr(text)
            if "<s>" not in text:  # plain text forges a control token there
                assert tokenizer.encode(text, parse_special=False) == peer.encode(text), repr(text)
        for token in range(1, 1 + 256 + len(WORDS) + len(HALVES)):
            assert tokenizer.decoding.token_bytes(token) == peer.piece(token)
        assert {*peer.ends()} == tokenizer.stop_ids
