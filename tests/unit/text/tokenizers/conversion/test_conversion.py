"""Conversion of tokenizers from GGUF metadata to tokenizer.json and back: the same ids, or a note on the difference."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from hf_folders import FLAGS, GPT2_CUT, tokenizer_json, write_tokenizer
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.text import load_tokenizer
from sporelm.text.tokenizers.byte_level import BYTE_OF_CHARACTER
from sporelm.text.tokenizers.conversion import tokenizer_comparison
from sporelm.text.tokenizers.conversion.tokenizer_json_writer import make_pre_tokenizer
from sporelm.text.tokenizers.conversion.tokenizer_to_gguf import convert_tokenizer_to_gguf
from sporelm.text.tokenizers.conversion.tokenizer_to_hf import convert_tokenizer_to_hf
from sporelm.text.tokenizers.load_tokenizer import load_gguf_tokenizer
from sporelm.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS, get_splitter

SEPARATOR = "\n__ggml_vocab_test__\n"
ALWAYS = ("starcoder", "llama-spm", "bert-bge")
NAMES = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.all)
    for name in (*ALWAYS, "gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "phi-3")
]
# Pre-tokenizers of published files, by their values of tokenizer.ggml.pre.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN_BYTES = GPT2_CUT | {"use_regex": False}
PRE_TOKENIZER_SPECS = {
    "gpt-2": (GPT2_CUT, False),
    "smollm": ([{"type": "Digits", "individual_digits": True}, GPT2_CUT], False),
    "llama-bpe": ([LLAMA3, PLAIN_BYTES], True),
    "dbrx": ([LLAMA3, PLAIN_BYTES], False),
    "qwen2": ([LLAMA3.replace("{1,3}", ""), PLAIN_BYTES], False),
}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(steps: list[Any]) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [split(step) if isinstance(step, str) else step for step in steps],
    }


def write_files(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def plain(fields: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, (_, value) in fields.items()}


@pytest.mark.parametrize("name", NAMES)
def test_vocabularies_become_a_tokenizer_json_with_the_same_ids(shared: Path, tmp_path: Path, name: str) -> None:
    file = shared / f"data/vocabs/ggml-vocab-{name}.gguf"
    with open_gguf(file) as model:
        converted = convert_tokenizer_to_hf(model.metadata, name)
        count = len(model.metadata["tokenizer.ggml.tokens"])
        metadata = {key: model.metadata[key] for key in model.metadata if key.startswith("tokenizer.")}
        tokens = list(metadata["tokenizer.ggml.tokens"])
        merges = list(metadata.get("tokenizer.ggml.merges", []))
    folder = write_files(tmp_path / "converted", converted.files)
    tokenizer = load_tokenizer(folder)
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == [int(word) for word in line.split()], repr(text)
    # Only WordPiece has rules (Hangul in parts) that tokenizer.json cannot express.
    assert len(converted.notes) == (name == "bert-bge")
    again = plain(convert_tokenizer_to_gguf(folder, count).fields)
    assert again["tokenizer.ggml.tokens"] == tokens
    assert again.get("tokenizer.ggml.merges", []) == merges
    keys = ("model", "bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id", "add_bos_token")
    for key in (f"tokenizer.ggml.{name}" for name in keys):
        if key in metadata:
            assert again[key] == metadata[key], key
    assert again.get("tokenizer.chat_template") == metadata.get("tokenizer.chat_template")
    if name not in ("bert-bge", "llama-spm", "phi-3"):
        assert again["tokenizer.ggml.pre"] == metadata["tokenizer.ggml.pre"]  # by its hash


@pytest.mark.parametrize("name", PRE_TOKENIZER_SPECS)
def test_pre_tokenizers_are_identified_by_their_patterns(tmp_path: Path, name: str) -> None:
    spec, ignore_merges = PRE_TOKENIZER_SPECS[name]
    spec = sequence(spec) if isinstance(spec, list) else spec
    write_tokenizer(tmp_path, tokenizer_json(300, spec, ignore_merges=ignore_merges))
    converted = convert_tokenizer_to_gguf(tmp_path, 310)
    assert converted.fields["tokenizer.ggml.pre"] == ("str", name)
    assert converted.notes == ()
    meta = plain(converted.fields)
    assert meta["tokenizer.ggml.tokens"][300:] == [f"[PAD{token}]" for token in range(300, 310)]
    assert meta["tokenizer.ggml.token_type"][295:302] == [1] * 5 + [5] * 2
    assert (meta["tokenizer.ggml.add_bos_token"], meta["tokenizer.ggml.bos_token_id"]) == (False, 1)


@pytest.mark.parametrize("name", [name for name, entry in PRE_TOKENIZERS.items() if not entry.metaspace])
def test_every_pre_tokenizer_is_converted(name: str) -> None:
    pre = PRE_TOKENIZERS[name]
    library = LibraryTokenizer.from_str(json.dumps(tokenizer_json(300, make_pre_tokenizer(pre)))).pre_tokenizer
    for text in tokenizer_comparison.TEXTS:
        pieces = [piece for piece, _ in library.pre_tokenize_str(text)]
        assert [bytes(map(BYTE_OF_CHARACTER.__getitem__, piece)).decode() for piece in pieces] == get_splitter(
            pre.rules
        ).split(text)


def test_an_unknown_pre_tokenizer_is_refused_unless_chosen(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tokenizer_json(300, sequence([LLAMA3.replace(" ?", "[ ]?"), PLAIN_BYTES])))
    with pytest.raises(UnsupportedModel, match="--pre dbrx, which splits a check text in the same way"):
        convert_tokenizer_to_gguf(tmp_path)
    assert convert_tokenizer_to_gguf(tmp_path, pre="dbrx").notes == ()
    with pytest.raises(UnsupportedModel, match=r"not supported \(got 'no-such'"):
        convert_tokenizer_to_gguf(tmp_path, pre="no-such")


def test_rules_that_a_gguf_file_cannot_express(tmp_path: Path) -> None:
    spec = tokenizer_json(300) | {"normalizer": {"type": "Lowercase"}}
    write_tokenizer(tmp_path, spec)
    with pytest.raises(UnsupportedModel, match="to other ids than the GGUF file"):
        convert_tokenizer_to_gguf(tmp_path)
    assert any(
        "to other ids than the GGUF file" in note for note in convert_tokenizer_to_gguf(tmp_path, pre="gpt-2").notes
    )
    write_tokenizer(tmp_path, tokenizer_json(300) | {"normalizer": {"type": "NFC"}})
    (note,) = convert_tokenizer_to_gguf(tmp_path).notes
    assert "the normalizer (NFC) is lost" in note
    with pytest.raises(UnsupportedModel, match="got 300 tokens, 200 rows"):
        convert_tokenizer_to_gguf(tmp_path, 200)
    with pytest.raises(UnsupportedModel, match="at most 262144 tokens are padded"):
        convert_tokenizer_to_gguf(tmp_path, 1 << 20)
    twice = {"Sequence": {"id": "A", "type_id": 0}}
    odd = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, twice], "pair": []}
    odd["special_tokens"] = {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}
    write_tokenizer(tmp_path, tokenizer_json(300) | {"post_processor": odd})
    with pytest.raises(UnsupportedModel, match=r"puts .* before every text"):
        convert_tokenizer_to_gguf(tmp_path)


def test_ends_and_templates(tmp_path: Path) -> None:
    template = [
        {"name": "default", "template": "D"},
        {"name": "tool use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]
    write_tokenizer(tmp_path, tokenizer_json(300), chat_template=template, add_bos_token=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 290, 291]}')
    converted = convert_tokenizer_to_gguf(tmp_path)
    meta = plain(converted.fields)
    assert (meta["tokenizer.ggml.eot_token_id"], meta["tokenizer.ggml.eom_token_id"]) == (290, 291)
    assert meta["tokenizer.ggml.add_bos_token"] is True
    assert meta["tokenizer.chat_template"] == "D"
    assert meta["tokenizer.chat_templates"] == ["tool_use", "rag"]
    files = convert_tokenizer_to_hf(meta, "back")
    assert files.stop_ids == {2, 290, 291}
    config = json.loads(files.files["tokenizer_config.json"])
    assert {entry["name"]: entry["template"] for entry in config["chat_template"]} == {
        "default": "D", "tool_use": "T", "rag": "R",
    }  # fmt: skip
    assert (config["add_bos_token"], config["bos_token"]) == (True, "<s>")


def test_vocab_json_and_merges_txt(tmp_path: Path) -> None:
    spec = tokenizer_json(300)
    write_tokenizer(tmp_path, spec, tokenizer_class="GPT2Tokenizer")
    expected = load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in spec["model"]["merges"]), ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    actual = load_tokenizer(tmp_path)
    for text in tokenizer_comparison.TEXTS:
        try:
            ids = expected.encode(text)
        except RequestError:
            continue
        assert actual.encode(text) == ids
    assert convert_tokenizer_to_gguf(tmp_path).fields["tokenizer.ggml.pre"] == ("str", "gpt-2")
    config = {"tokenizer_class": "NoSuchTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="NoSuchTokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.json").write_text('{"a": -1}')
    with pytest.raises(ModelFileError, match="not a table of tokens"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"] | {"far": 4_000_000_000}))
    with pytest.raises(ModelFileError, match=r"vocab\.json: 'far' has the id 4000000000, not 0 to"):
        convert_tokenizer_to_gguf(tmp_path)  # and takes no memory for the ids between


def test_a_model_without_its_type(tmp_path: Path) -> None:
    """As in the tokenizer.json of older folders, such as GPT-2's."""
    spec = tokenizer_json(300)
    write_tokenizer(tmp_path, spec)
    expected = plain(convert_tokenizer_to_gguf(tmp_path).fields)
    del spec["model"]["type"]
    write_tokenizer(tmp_path, spec)
    assert plain(convert_tokenizer_to_gguf(tmp_path).fields) == expected


def test_a_sentencepiece_model(root: Path, tmp_path: Path) -> None:
    shutil.copyfile(root / "tests/data/sentencepiece/llama.model", tmp_path / "tokenizer.model")
    entries = {"490": {"content": "<|im_end|>", "special": True}, "491": {"content": "<tool>", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entries}))
    converted = convert_tokenizer_to_gguf(tmp_path, 500)
    meta = plain(converted.fields)
    assert (meta["tokenizer.ggml.model"], converted.notes) == ("llama", ())
    assert meta["tokenizer.ggml.token_type"][488:493] == [5, 5, 3, 4, 5]
    assert meta["tokenizer.ggml.scores"][490] == -1000
    files = convert_tokenizer_to_hf(meta, "back")
    assert files.notes == ()
    again = plain(convert_tokenizer_to_gguf(write_files(tmp_path / "back", files.files), 500).fields)
    assert again["tokenizer.ggml.tokens"] == meta["tokenizer.ggml.tokens"]
    assert again["tokenizer.ggml.token_type"] == meta["tokenizer.ggml.token_type"]
    # The tokenizer.model beside a tokenizer.json gives the scores.
    shutil.copyfile(tmp_path / "tokenizer.model", tmp_path / "back" / "tokenizer.model")
    scores = plain(convert_tokenizer_to_gguf(tmp_path / "back", 500).fields)["tokenizer.ggml.scores"]
    assert scores[3:480] == meta["tokenizer.ggml.scores"][3:480]


def test_user_defined_pieces_of_a_unigram_model_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copyfile(root / "tests/data/sentencepiece/unigram.model", tmp_path / "tokenizer.model")
    with pytest.raises(UnsupportedModel, match="--pre default"):
        convert_tokenizer_to_gguf(tmp_path)
    with pytest.raises(RequestError, match="got tokenizer model 't5'; allowed --pre default"):
        convert_tokenizer_to_gguf(tmp_path, pre="gpt-2")
    assert len(convert_tokenizer_to_gguf(tmp_path, pre="default").notes) == 1


def unigram() -> dict[str, Any]:
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["▁", -3.0], ["▁the", -3.5], ["the", -5.0], ["▁he", -4.5]]
    pieces += [[letter, -6.0 - 0.01 * i] for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz.,!'0123456789")]
    added = [{"id": i, "content": pieces[i][0], "special": True} | FLAGS for i in range(3)]
    steps = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
    }  # fmt: skip


def test_unigram_both_ways(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, unigram())
    converted = convert_tokenizer_to_gguf(tmp_path)
    meta = plain(converted.fields)
    assert (meta["tokenizer.ggml.model"], converted.notes) == ("t5", ())
    assert (meta["tokenizer.ggml.add_eos_token"], meta["tokenizer.ggml.remove_extra_whitespaces"]) == (True, True)
    ours = load_gguf_tokenizer(meta, "t5")
    assert ours.encode("the he  athe") == load_tokenizer(tmp_path).encode("the he  athe")
    files = convert_tokenizer_to_hf(meta, "back")
    assert files.notes == ()
    back = load_tokenizer(write_files(tmp_path / "back", files.files))
    for text in ("the he  athe", "  the,  two!", "9 8", "other"):
        assert back.encode(text) == ours.encode(text)
        assert back.decode(back.encode(text)[:-1]) == ours.decode(ours.encode(text)[:-1])


def test_scores_beyond_float32_are_refused(tmp_path: Path) -> None:
    spec = unigram()
    spec["model"]["vocab"][4][1] = -1e300
    write_tokenizer(tmp_path, spec)
    with pytest.raises(ModelFileError, match=r"a score of its vocabulary is beyond 3\.4e\+38"):
        convert_tokenizer_to_gguf(tmp_path)


def test_tokens_that_are_too_long_are_refused() -> None:
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", "a" * 5000],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0],
        "tokenizer.ggml.token_type": [2, 1, 1],
    }
    with pytest.raises(ModelFileError, match="too long"):
        convert_tokenizer_to_hf(meta, "m")
