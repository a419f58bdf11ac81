"""Tokenizers out of GGUF metadata into tokenizer.json and back: the same ids, or a line that says why not."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from hf_folders import FLAGS, GPT2_CUT, tokenizer_json, write_tokenizer
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.text import load_tokenizer
from sporelm.text.exchange import comparison
from sporelm.text.exchange.gguf_fields import MetadataSource, fields_of_folder
from sporelm.text.exchange.hf_files import files_of_metadata
from sporelm.text.exchange.hf_kinds import cutting
from sporelm.text.pre_tokenizers import PRE_TOKENIZERS, cutter_of
from sporelm.text.token_bytes import BYTE_OF_CHARACTER
from sporelm.weights.gguf import open_gguf

SEPARATOR = "\n__ggml_vocab_test__\n"
ALWAYS = ("starcoder", "llama-spm", "bert-bge")
NAMES = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.all)
    for name in (*ALWAYS, "gpt-2", "llama-bpe", "qwen2", "deepseek-coder", "phi-3")
]
# The cuts of models' own files, with the value of tokenizer.ggml.pre that stands for each.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN_BYTES = GPT2_CUT | {"use_regex": False}
CUTS = {
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


def written(folder: Path, files: dict[str, str]) -> Path:
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
        made = files_of_metadata(model.metadata, name)
        count = len(model.metadata["tokenizer.ggml.tokens"])
        wanted = {key: model.metadata[key] for key in model.metadata if key.startswith("tokenizer.")}
        tokens = list(wanted["tokenizer.ggml.tokens"])
        merges = list(wanted.get("tokenizer.ggml.merges", []))
    folder = written(tmp_path / "made", made.files)
    tokenizer = load_tokenizer(folder)
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert ids == [int(word) for word in line.split()], repr(text)
    # WordPiece alone has rules (Hangul in parts) that tokenizer.json has no words for.
    assert len(made.notes) == (name == "bert-bge")
    again = plain(fields_of_folder(folder, count).fields)
    assert again["tokenizer.ggml.tokens"] == tokens
    assert again.get("tokenizer.ggml.merges", []) == merges
    kept = ("model", "bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id", "add_bos_token")
    for key in (f"tokenizer.ggml.{word}" for word in kept):
        if key in wanted:
            assert again[key] == wanted[key], key
    assert again.get("tokenizer.chat_template") == wanted.get("tokenizer.chat_template")
    if name not in ("bert-bge", "llama-spm", "phi-3"):
        assert again["tokenizer.ggml.pre"] == wanted["tokenizer.ggml.pre"]  # by its hash


@pytest.mark.parametrize("name", CUTS)
def test_cuts_are_known_by_their_patterns(tmp_path: Path, name: str) -> None:
    cut, whole = CUTS[name]
    write_tokenizer(tmp_path, tokenizer_json(300, sequence(cut) if isinstance(cut, list) else cut, ignore_merges=whole))
    found = fields_of_folder(tmp_path, 310)
    assert found.fields["tokenizer.ggml.pre"] == ("str", name)
    assert found.notes == ()
    meta = plain(found.fields)
    assert meta["tokenizer.ggml.tokens"][300:] == [f"[PAD{token}]" for token in range(300, 310)]
    assert meta["tokenizer.ggml.token_type"][295:302] == [1] * 5 + [5] * 2
    assert (meta["tokenizer.ggml.add_bos_token"], meta["tokenizer.ggml.bos_token_id"]) == (False, 1)


@pytest.mark.parametrize("name", [name for name, one in PRE_TOKENIZERS.items() if not one.raw])
def test_every_known_cut_becomes_a_pre_tokenizer(name: str) -> None:
    pre = PRE_TOKENIZERS[name]
    library = LibraryTokenizer.from_str(json.dumps(tokenizer_json(300, cutting(pre)))).pre_tokenizer
    for text in comparison.TEXTS:
        pieces = [piece for piece, _ in library.pre_tokenize_str(text)]
        assert [bytes(map(BYTE_OF_CHARACTER.__getitem__, piece)).decode() for piece in pieces] == cutter_of(
            pre.rules
        ).cut(text)


def test_an_unknown_cut_is_refused_and_may_be_vouched_for(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tokenizer_json(300, sequence([LLAMA3.replace(" ?", "[ ]?"), PLAIN_BYTES])))
    with pytest.raises(UnsupportedModel, match="--pre dbrx takes that"):
        fields_of_folder(tmp_path)
    assert fields_of_folder(tmp_path, pre="dbrx").notes == ()
    with pytest.raises(UnsupportedModel, match="'no-such' is not supported"):
        fields_of_folder(tmp_path, pre="no-such")


def test_what_a_gguf_file_has_no_words_for(tmp_path: Path) -> None:
    spec = tokenizer_json(300) | {"normalizer": {"type": "Lowercase"}}
    write_tokenizer(tmp_path, spec)
    with pytest.raises(UnsupportedModel, match="makes other ids of"):
        fields_of_folder(tmp_path)
    assert any("makes other ids of" in note for note in fields_of_folder(tmp_path, pre="gpt-2").notes)
    write_tokenizer(tmp_path, tokenizer_json(300) | {"normalizer": {"type": "NFC"}})
    (note,) = fields_of_folder(tmp_path).notes
    assert "not normalized (NFC)" in note
    with pytest.raises(UnsupportedModel, match="300 tokens, the model's embedding 200 rows"):
        fields_of_folder(tmp_path, 200)
    with pytest.raises(UnsupportedModel, match="at most 262144 can be filled up"):
        fields_of_folder(tmp_path, 1 << 20)
    twice = {"Sequence": {"id": "A", "type_id": 0}}
    odd = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, twice], "pair": []}
    odd["special_tokens"] = {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}
    write_tokenizer(tmp_path, tokenizer_json(300) | {"post_processor": odd})
    with pytest.raises(UnsupportedModel, match=r"puts .* before every text"):
        fields_of_folder(tmp_path)


def test_ends_and_templates(tmp_path: Path) -> None:
    template = [
        {"name": "default", "template": "D"},
        {"name": "tool use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]
    write_tokenizer(tmp_path, tokenizer_json(300), chat_template=template, add_bos_token=True)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 290, 291]}')
    found = fields_of_folder(tmp_path)
    meta = plain(found.fields)
    assert (meta["tokenizer.ggml.eot_token_id"], meta["tokenizer.ggml.eom_token_id"]) == (290, 291)
    assert meta["tokenizer.ggml.add_bos_token"] is True
    assert meta["tokenizer.chat_template"] == "D"
    assert meta["tokenizer.chat_templates"] == ["tool_use", "rag"]
    made = files_of_metadata(meta, "back")
    assert made.stop_ids == {2, 290, 291}
    config = json.loads(made.files["tokenizer_config.json"])
    assert {entry["name"]: entry["template"] for entry in config["chat_template"]} == {
        "default": "D", "tool_use": "T", "rag": "R",
    }  # fmt: skip
    assert (config["add_bos_token"], config["bos_token"]) == (True, "<s>")


def test_vocab_json_and_merges_txt(tmp_path: Path) -> None:
    spec = tokenizer_json(300)
    write_tokenizer(tmp_path, spec, tokenizer_class="GPT2Tokenizer")
    wanted = load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in spec["model"]["merges"]), ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    found = load_tokenizer(tmp_path)
    for text in comparison.TEXTS:
        try:
            ids = wanted.encode(text)
        except RequestError:
            continue
        assert found.encode(text) == ids
    assert fields_of_folder(tmp_path).fields["tokenizer.ggml.pre"] == ("str", "gpt-2")
    config = {"tokenizer_class": "NoSuchTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="NoSuchTokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.json").write_text('{"a": -1}')
    with pytest.raises(ModelFileError, match="no table of tokens"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"] | {"far": 4_000_000_000}))
    with pytest.raises(ModelFileError, match=r"vocab\.json: 'far' has the id 4000000000, not 0 to"):
        fields_of_folder(tmp_path)  # and takes no memory for the ids between


def test_a_model_that_does_not_say_its_type(tmp_path: Path) -> None:
    """As in the tokenizer.json of older folders, such as GPT-2's."""
    spec = tokenizer_json(300)
    write_tokenizer(tmp_path, spec)
    wanted = plain(fields_of_folder(tmp_path).fields)
    del spec["model"]["type"]
    write_tokenizer(tmp_path, spec)
    assert plain(fields_of_folder(tmp_path).fields) == wanted


def test_a_sentencepiece_model(root: Path, tmp_path: Path) -> None:
    shutil.copyfile(root / "tests/data/sentencepiece/llama.model", tmp_path / "tokenizer.model")
    entries = {"490": {"content": "<|im_end|>", "special": True}, "491": {"content": "<tool>", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entries}))
    found = fields_of_folder(tmp_path, 500)
    meta = plain(found.fields)
    assert (meta["tokenizer.ggml.model"], found.notes) == ("llama", ())
    assert meta["tokenizer.ggml.token_type"][488:493] == [5, 5, 3, 4, 5]
    assert meta["tokenizer.ggml.scores"][490] == -1000
    made = files_of_metadata(meta, "back")
    assert made.notes == ()
    again = plain(fields_of_folder(written(tmp_path / "back", made.files), 500).fields)
    assert again["tokenizer.ggml.tokens"] == meta["tokenizer.ggml.tokens"]
    assert again["tokenizer.ggml.token_type"] == meta["tokenizer.ggml.token_type"]
    # The tokenizer.model beside a tokenizer.json gives the scores.
    shutil.copyfile(tmp_path / "tokenizer.model", tmp_path / "back" / "tokenizer.model")
    scores = plain(fields_of_folder(tmp_path / "back", 500).fields)["tokenizer.ggml.scores"]
    assert scores[3:480] == meta["tokenizer.ggml.scores"][3:480]


def test_user_defined_pieces_of_a_unigram_model_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copyfile(root / "tests/data/sentencepiece/unigram.model", tmp_path / "tokenizer.model")
    with pytest.raises(UnsupportedModel, match="--pre default"):
        fields_of_folder(tmp_path)
    with pytest.raises(RequestError, match="kind 't5', for which it is 'default'"):
        fields_of_folder(tmp_path, pre="gpt-2")
    assert len(fields_of_folder(tmp_path, pre="default").notes) == 1


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
    found = fields_of_folder(tmp_path)
    meta = plain(found.fields)
    assert (meta["tokenizer.ggml.model"], found.notes) == ("t5", ())
    assert (meta["tokenizer.ggml.add_eos_token"], meta["tokenizer.ggml.remove_extra_whitespaces"]) == (True, True)
    ours = load_tokenizer(MetadataSource(meta, "t5"))  # type: ignore[arg-type]
    assert ours.encode("the he  athe") == load_tokenizer(tmp_path).encode("the he  athe")
    made = files_of_metadata(meta, "back")
    assert made.notes == ()
    back = load_tokenizer(written(tmp_path / "back", made.files))
    for text in ("the he  athe", "  the,  two!", "9 8", "other"):
        assert back.encode(text) == ours.encode(text)
        assert back.decode(back.encode(text)[:-1]) == ours.decode(ours.encode(text)[:-1])


def test_scores_beyond_float32_are_refused(tmp_path: Path) -> None:
    spec = unigram()
    spec["model"]["vocab"][4][1] = -1e300
    write_tokenizer(tmp_path, spec)
    with pytest.raises(ModelFileError, match=r"a score of its vocabulary is beyond 3\.4e\+38"):
        fields_of_folder(tmp_path)


def test_tokens_that_are_too_long_are_refused() -> None:
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "a", "a" * 5000],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0],
        "tokenizer.ggml.token_type": [2, 1, 1],
    }
    with pytest.raises(ModelFileError, match="too long"):
        files_of_metadata(meta, "m")
