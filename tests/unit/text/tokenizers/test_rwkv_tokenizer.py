"""RWKV's vocabularies: the longest token at each place of a text's bytes; with --all, as llama.cpp cuts it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_logits import load_peer_vocab
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.files.gguf import GgufWriter
from sporelm.text import Detokenizer
from sporelm.text.chat_templates.chat_template import ChatTemplate
from sporelm.text.tokenizers.conversion.tokenizer_to_gguf import convert_tokenizer_to_gguf
from sporelm.text.tokenizers.conversion.tokenizer_to_hf import convert_tokenizer_to_hf
from sporelm.text.tokenizers.gguf_rwkv import load_gguf_rwkv
from sporelm.text.tokenizers.hf_rwkv import RWKV_VOCABULARY
from sporelm.text.tokenizers.load_tokenizer import load_tokenizer
from sporelm.text.tokenizers.rwkv_tokenizer import RwkvModel, escape_token, unescape_token

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
    tokens = ["<s>", *(escape_token(token) for token in (*BYTES, *words))]
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
    assert RwkvModel(tokens).encode(text) == expected(tokens, text.encode())


@given(st.binary(max_size=40))
def test_tokens_are_written_as_python_writes_bytes(token: bytes) -> None:
    assert unescape_token(escape_token(token)) == token


def test_letters_that_are_not_escaped() -> None:
    assert unescape_token("日\\x4aé\\q\\\\n") == "日Jéq\\n".encode()
    assert unescape_token("\\") == b"\\"


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back(text: str) -> None:
    tokenizer = load_tokenizer_of(metadata())
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert 0 not in ids  # letters do not forge a control token
    stream = Detokenizer(tokenizer)
    assert stream.push_all(ids) + stream.flush() == text


def load_tokenizer_of(values: dict[str, Any]) -> Any:
    return load_gguf_rwkv(values, "m.gguf")


def test_control_tokens_and_ends() -> None:
    tokenizer = load_tokenizer_of(metadata())
    assert tokenizer.encode("<s>a") == [0, 1 + ord("a")]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (0, 0, False)
    assert tokenizer.stop_ids == {0, 262}  # and the end of a turn, two line feeds
    assert tokenizer.decoder.token_bytes(262) == b"\n\n"


def test_a_chat_template_by_name() -> None:
    """As llama.cpp renders it; the same words as a template of a file's own stay as they are."""
    chat = [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi"}]
    tokenizer = load_tokenizer_of(metadata(**{"tokenizer.chat_template": "rwkv-world"}))
    rendered = ChatTemplate.of(tokenizer).render(chat).text
    assert rendered == "System: Be brief.\n\nUser: Hi\n\nAssistant:"
    chat += [{"role": "assistant", "content": " Hello. "}, {"role": "user", "content": "?"}]
    assert ChatTemplate.of(tokenizer).render(chat).text.endswith("Assistant: Hello.\n\nUser: ?\n\nAssistant:")
    own = load_tokenizer_of(metadata(**{"tokenizer.chat_template": "{{ messages[0].content }}"}))
    assert ChatTemplate.of(own).render(chat[1:2]).text == "Hi"


def test_bytes_without_a_token_are_refused() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][1 + ord("z")] = "zz"
    with pytest.raises(RequestError, match=r"at position 1 \(got 'z', byte 0x7A\)"):
        load_tokenizer_of(given).encode("az")


def test_damaged_vocabularies_are_refused() -> None:
    with pytest.raises(ModelFileError, match="are the same token"):
        load_tokenizer_of(metadata(**{"tokenizer.ggml.tokens": ["a", "a"]}))
    with pytest.raises(ModelFileError, match="bos_token_id is 900, outside"):
        load_tokenizer_of(metadata(**{"tokenizer.ggml.bos_token_id": 900}))


def test_it_cannot_become_a_tokenizer_json() -> None:
    with pytest.raises(UnsupportedModel, match=r"cannot be converted to a tokenizer\.json \(got 'rwkv'"):
        convert_tokenizer_to_hf(metadata(), "m.gguf")


END_OF_TEXT = "<|rwkv_tokenizer_end_of_text|>"


def write_list(folder: Path, **config: Any) -> Path:
    """A folder with RWKV's list of tokens, whose last one is far behind the others."""
    tokens = [*BYTES, *(word.encode() for word in WORDS), *HALVES]
    shown = [token if token in HALVES or (token[0] > 127 and len(token) == 1) else token.decode() for token in tokens]
    lines = [
        f"{number + 1} {text!r} {len(token)}" for number, (text, token) in enumerate(zip(shown, tokens, strict=True))
    ]
    (folder / RWKV_VOCABULARY).write_text("\n".join([*lines, f"{len(lines) + 5} 'last' 4", ""]), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [0, 262]}))
    return folder


def test_a_folder_with_the_list(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_list(tmp_path, unk_token=END_OF_TEXT, chat_template="{{ 1 }}"))
    assert (tokenizer.vocab_size, tokenizer.stop_ids, tokenizer.chat_template) == (281, {0, 262}, "{{ 1 }}")
    assert tokenizer.encode(f"{END_OF_TEXT}last") == [0, 280]
    of_file = load_tokenizer_of(metadata())
    for text in TEXTS[:-1]:
        if "[PAD" not in text:
            assert tokenizer.encode(text, parse_special=False) == of_file.encode(text, parse_special=False)
    made = convert_tokenizer_to_gguf(tmp_path, 300)
    assert made.notes == ()
    values = {key: value for key, (_, value) in made.fields.items()}
    assert (values["tokenizer.ggml.model"], len(values["tokenizer.ggml.tokens"])) == ("rwkv", 300)
    assert (values["tokenizer.ggml.bos_token_id"], values["tokenizer.ggml.eot_token_id"]) == (0, 262)
    assert load_tokenizer_of(values).encode(f"{END_OF_TEXT}last\n\n") == [0, 280, 262]


@pytest.mark.parametrize(
    "line",
    ["1 'a' 2", "1 a 1", "x 'a' 1", "1 'a\\' 1", "1 b'\\x4' 1", "1 '(' + 'a' 4", "1 '\\udc80' 1", "99999999 'a' 1"],
)
def test_damaged_lists_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / RWKV_VOCABULARY).write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match="damaged"):
        load_tokenizer(tmp_path)


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
            assert tokenizer.decoder.token_bytes(token) == peer.piece(token)
        assert {*peer.ends()} == tokenizer.stop_ids
