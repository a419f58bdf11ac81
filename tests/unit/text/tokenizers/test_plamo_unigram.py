"""PLaMo's vocabularies: the cut of the highest sum of scores; with --all, as llama.cpp cuts it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_logits import load_peer_vocab
from sporelm.errors import ModelFileError
from sporelm.files.gguf import GgufWriter
from sporelm.text.tokenizers.conversion.tokenizer_to_gguf import convert_tokenizer_to_gguf
from sporelm.text.tokenizers.conversion.tokenizer_to_hf import convert_tokenizer_to_hf
from sporelm.text.tokenizers.gguf_plamo import load_gguf_plamo
from sporelm.text.tokenizers.load_tokenizer import load_tokenizer
from sporelm.text.tokenizers.plamo_unigram import UNKNOWN_SCORE, PlamoUnigram

UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6
NAMED = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
WORDS = {"a": -2.0, "b": -2.5, "ab": -4.5, "ba": -3.0, "aba": -6.5, "the": -5.0, "th": -4.0, "e": -3.0, " ": -1.5}
WORDS |= {" the": -5.5, "日": -7.0, "日本": -9.0, "本": -8.0, "\n": -3.0, "▁": -6.0, "rare": -3000.0, "<0x": -9.5}
TEXTS = [
    "",
    "ababab",
    "the  the\nthe",
    "日本日 本",
    "naïve 🙂 \ufefffin",
    "\ufeffab",
    "▁a",
    "rare",
    "<|plamo:op|>ab",
    "<0x41>",
]


def metadata(**changes: Any) -> dict[str, Any]:
    """A vocabulary as llama.cpp's converter writes it."""
    tokens = [*NAMED, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    types = [UNKNOWN, *[CONTROL] * 4, *[BYTE] * 256, *[NORMAL] * len(WORDS)]
    scores = np.array([0.0] * 261 + list(WORDS.values()), np.float32)
    found = {"general.architecture": "plamo2", "tokenizer.ggml.model": "plamo2", "tokenizer.ggml.tokens": tokens}
    found |= {"tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": np.array(types, np.int32)}
    return found | {"tokenizer.ggml.eot_token_id": 4} | changes


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=4), st.integers(-60, 0), max_size=12), st.text("abc", max_size=9)
)
def test_the_best_cut_is_taken(tokens: dict[str, int], text: str) -> None:
    """Every cut is tried; of equal ones that with the longest first token, then the next."""
    ids = {token: number for number, token in enumerate(tokens)}
    scores = {token: score / 10 for token, score in tokens.items()}

    def cuts(rest: str) -> list[tuple[int, list[int], list[int]]]:
        if not rest:
            return [(0, [], [])]
        found = [(total + UNKNOWN_SCORE, [0, *lengths], [-1, *own]) for total, lengths, own in cuts(rest[1:])]
        for token, number in ids.items():
            if rest.startswith(token):
                score = round(scores[token] * 1e4)
                found += [
                    (total + score, [len(token), *lengths], [number, *own])
                    for total, lengths, own in cuts(rest[len(token) :])
                ]
        return found

    made = PlamoUnigram(ids, scores, lambda character: (-1,)).encode(text)
    assert made == max(cuts(text), key=lambda cut: (cut[0], cut[1]))[2]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back(text: str) -> None:
    tokenizer = load_gguf_plamo(metadata(), "m.gguf")
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text.removeprefix("\ufeff")
    assert not {*ids} & {*range(5)}  # letters do not forge a control token


def test_control_tokens_and_ends() -> None:
    tokenizer = load_gguf_plamo(metadata(), "m.gguf")
    assert tokenizer.encode("<|plamo:op|>a") == [4, 261]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (1, 2, False)
    assert tokenizer.stop_ids == {2, 4}


KINDS = {UNKNOWN: "UNKNOWN", CONTROL: "CONTROL", BYTE: "BYTE", NORMAL: "NORMAL"}


def write_folder(folder: Path, lines: list[Any] | None = None, **config: Any) -> Path:
    """A folder as PLaMo's makers publish it; its kinds of control tokens are to be seen from their texts."""
    given = metadata()
    rows = zip(*(given[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")), strict=True)
    rows = [[text, float(score), KINDS[kind].replace("CONTROL", "NORMAL"), 0, 0] for text, score, kind in rows]
    folder.mkdir(exist_ok=True)
    text = "".join(f"{json.dumps(row)}\n" for row in (rows if lines is None else lines))
    (folder / "tokenizer.jsonl").write_text(text, encoding="utf-8")
    named = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), NAMED, strict=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"chat_template": "{{ 1 }}"} | config))
    return folder


def test_a_folder_says_the_same(tmp_path: Path) -> None:
    folder, from_gguf = write_folder(tmp_path / "a"), load_gguf_plamo(metadata(), "m.gguf")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("ab") == [1, *from_gguf.encode("ab")]
    assert not load_tokenizer(write_folder(folder, add_bos_token=False)).add_bos
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == from_gguf.encode(text)
    assert (tokenizer.stop_ids, tokenizer.chat_template) == ({2, 4}, "{{ 1 }}")


def test_a_folder_as_gguf_and_back(tmp_path: Path) -> None:
    folder, size = write_folder(tmp_path / "a"), len(metadata()["tokenizer.ggml.tokens"]) + 3
    made = {key: value for key, (_, value) in convert_tokenizer_to_gguf(folder, size).fields.items()}
    tokenizer, wanted = load_gguf_plamo(made, "m.gguf"), load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.stop_ids) == (size, wanted.stop_ids)
    assert [tokenizer.encode(text) for text in TEXTS] == [wanted.encode(text) for text in TEXTS]
    back = tmp_path / "back"
    back.mkdir()
    for name, contents in convert_tokenizer_to_hf(made, "m.gguf").files.items():
        (back / name).write_text(contents, encoding="utf-8")
    again = load_tokenizer(back)
    assert [again.encode(text) for text in TEXTS] == [wanted.encode(text) for text in TEXTS]
    assert (again.special.names, again.chat_template) == (wanted.special.names, "{{ 1 }}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([["a"]], "line 1 is not a list"),
        ([["a", "b", "NORMAL"]], "line 1 is not a list"),
        ([["a", True]], "line 1 is not a list"),
        ([["a", -1.0]], "0 of its tokens"),
        ([["a", 10**400], ["b", -(10**300)]], "0 of its tokens"),
        ([["a", 0.0], ["\ud800", 0.0]], "line 2 contains half of a surrogate pair"),
    ],
)
def test_damaged_folders_are_refused(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(write_folder(tmp_path / "a", lines))


def test_damaged_vocabularies_are_refused() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][5] = "zero"
    with pytest.raises(ModelFileError, match="255 of its tokens stand for bytes"):
        load_gguf_plamo(given, "m.gguf")


@pytest.mark.all
def test_ids_are_llama_cpps(root: Path, tmp_path: Path) -> None:
    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    file = tmp_path / "vocab.gguf"
    writer = GgufWriter(file)
    for key, value in metadata().items():
        kind = {list: "[str]", int: "u32", str: "str"}.get(type(value)) or (
            "[i32]" if value.dtype == np.int32 else "[f32]"
        )
        writer.add(key, value, kind)
    writer.write()
    peer_vocab, tokenizer = load_peer_vocab(root), load_tokenizer(file)
    with peer_vocab.PeerVocab(peer_vocab.load_library(Path(place)), file) as peer:
        for text in TEXTS:
            assert tokenizer.encode(text) == peer.encode(text, parse_special=True), repr(text)
            if "<|" not in text:  # plain text forges a control token there
                assert tokenizer.encode(text, parse_special=False) == peer.encode(text), repr(text)
        for token in range(5, 5 + 256 + len(WORDS)):
            assert tokenizer.decoder.token_bytes(token) == peer.piece(token)
        assert {*peer.ends()} == tokenizer.stop_ids
