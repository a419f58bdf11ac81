"""Prompts for a gap: the marks of each family, in the order that it wants."""

from pathlib import Path
from typing import Any

import pytest

from hf_folders import FLAGS, tokenizer_json, write_tokenizer
from sporelm.errors import ModelFileError
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.filling import FAMILIES, GapTokens, filling_prompt, gap_tokens
from sporelm.text.gguf_roles import gap_of
from sporelm.text.gguf_vocabulary import Vocabulary


def made(folder: Path, marks: tuple[str, ...], *, special: bool = True, **config: Any) -> Tokenizer:
    """A tokenizer whose last tokens are these marks."""
    spec = tokenizer_json(300)
    for mark in marks:
        token = len(spec["model"]["vocab"])
        spec["model"]["vocab"][mark] = token
        spec["added_tokens"].append({"id": token, "content": mark, "special": special} | FLAGS)
    write_tokenizer(folder, spec, **config)
    return load_tokenizer(folder)


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(tokenizer.pieces(ids))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each[0])
def test_each_familys_marks(family: tuple[str, str, str | None], special: bool, tmp_path: Path) -> None:
    before, after, middle = family
    marks = tuple(mark for mark in family if mark is not None)
    tokenizer = made(tmp_path, (*marks, "<|file_sep|>"), special=special)
    gap = gap_tokens(tokenizer)
    assert gap is not None
    ids = filling_prompt(tokenizer, gap, "def f(", "): <s> <PRE>")
    told = shown(tokenizer, ids)
    if middle is None:
        assert told == f"{after}): <s> <PRE>{before}def f("
    else:
        assert told == f"{before}def f({after}): <s> <PRE>{middle}"
    assert 1 not in ids, "special tokens inside of a text are text"
    assert not special or ids.count(gap.prefix) == 1, "and so are marks"
    assert filling_prompt(tokenizer, gap, tokenizer.encode("def f("), "): <s> <PRE>") == ids
    assert {gap.prefix, gap.suffix, tokenizer.encode("<|file_sep|>")[-1]} <= gap.ends


def test_what_goes_before_every_text_goes_before_the_marks(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ("<PRE>", "<SUF>", "<MID>"), add_bos_token=True)
    gap = gap_tokens(tokenizer)
    assert gap is not None
    for before in ("a", tokenizer.encode("a")):
        assert shown(tokenizer, filling_prompt(tokenizer, gap, before, "b")) == "<s><PRE>a<SUF>b<MID>"


def test_a_vocabulary_without_marks_has_none(story: Path, tmp_path: Path) -> None:
    assert gap_tokens(load_tokenizer(story)) is None
    assert gap_tokens(made(tmp_path, ("<|fim_prefix|>", "<fim_suffix>", "<MID>"))) is None


TOKENS = ["<unk>", "a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("keys", "gap"),
    [
        ({"fim_pre": 1, "fim_suf": 2, "fim_mid": 3, "prefix": 4}, {"prefix": 1, "suffix": 2, "middle": 3}),
        ({"prefix": 3, "suffix": 2, "middle": 1}, {"prefix": 3, "suffix": 2, "middle": 1}),
        ({}, {}),
    ],
)
def test_what_a_gguf_file_names(keys: dict[str, int], gap: dict[str, int]) -> None:
    named = {f"tokenizer.ggml.{key}_token_id": token for key, token in keys.items()}
    assert gap_of(Vocabulary({"tokenizer.ggml.tokens": TOKENS, **named}, "x")) == gap


def test_a_mark_outside_the_vocabulary_is_damage() -> None:
    with pytest.raises(ModelFileError, match="outside the 5 tokens"):
        gap_of(Vocabulary({"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.fim_pre_token_id": 5}, "x"))


REAL = {
    "deepseek-coder": "<｜begin▁of▁sentence｜><｜fim▁begin｜>def f(<｜fim▁hole｜>): <s><｜fim▁end｜>",
    "starcoder": "<fim_prefix>def f(<fim_suffix>): <s><fim_middle>",
}


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "data" / "vocabs" / f"ggml-vocab-{name}.gguf")
    gap = gap_tokens(tokenizer)
    assert gap is not None
    assert shown(tokenizer, filling_prompt(tokenizer, gap, "def f(", "): <s>")) == REAL[name]


def test_what_is_after_the_gap_begins_without_a_space_of_its_own(shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "data" / "vocabs" / "ggml-vocab-llama-spm.gguf")
    gap = GapTokens(259, 260, 261, frozenset())
    for after in ("return", " return", "\nreturn", "é", "):"):
        ids = filling_prompt(tokenizer, gap, "def", after)
        assert tokenizer.decode(ids[ids.index(260) + 1 : -1], continues=True) == after
