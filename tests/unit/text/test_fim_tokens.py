"""FIM prompts: the special tokens of each family, in its order."""

from pathlib import Path
from typing import Any

import pytest

from hf_folders import FLAGS, tokenizer_json, write_tokenizer
from sporelm.errors import ModelFileError
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.fim_tokens import FAMILIES, FimTokens, encode_fim_prompt, find_fim_tokens
from sporelm.text.tokenizers.gguf_special_tokens import read_fim_ids
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary


def make_tokenizer(folder: Path, texts: tuple[str, ...], *, special: bool = True, **config: Any) -> Tokenizer:
    """Return a tokenizer whose last tokens have these texts."""
    spec = tokenizer_json(300)
    for text in texts:
        token = len(spec["model"]["vocab"])
        spec["model"]["vocab"][text] = token
        spec["added_tokens"].append({"id": token, "content": text, "special": special} | FLAGS)
    write_tokenizer(folder, spec, **config)
    return load_tokenizer(folder)


def join_pieces(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(tokenizer.pieces(ids))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each[0])
def test_tokens_of_each_family(family: tuple[str, str, str | None], special: bool, tmp_path: Path) -> None:
    prefix, suffix, middle = family
    texts = tuple(text for text in family if text is not None)
    tokenizer = make_tokenizer(tmp_path, (*texts, "<|file_sep|>"), special=special)
    fim = find_fim_tokens(tokenizer)
    assert fim is not None
    ids = encode_fim_prompt(tokenizer, fim, "def f(", "): <s> <PRE>")
    text = join_pieces(tokenizer, ids)
    if middle is None:
        assert text == f"{suffix}): <s> <PRE>{prefix}def f("
    else:
        assert text == f"{prefix}def f({suffix}): <s> <PRE>{middle}"
    assert 1 not in ids, "special tokens inside a text are plain text"
    assert not special or ids.count(fim.prefix) == 1, "and so are FIM tokens"
    assert encode_fim_prompt(tokenizer, fim, tokenizer.encode("def f("), "): <s> <PRE>") == ids
    assert {fim.prefix, fim.suffix, tokenizer.encode("<|file_sep|>")[-1]} <= fim.stop_ids


def test_bos_comes_before_the_fim_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, ("<PRE>", "<SUF>", "<MID>"), add_bos_token=True)
    fim = find_fim_tokens(tokenizer)
    assert fim is not None
    for before in ("a", tokenizer.encode("a")):
        assert join_pieces(tokenizer, encode_fim_prompt(tokenizer, fim, before, "b")) == "<s><PRE>a<SUF>b<MID>"


def test_a_vocabulary_without_fim_tokens(story: Path, tmp_path: Path) -> None:
    assert find_fim_tokens(load_tokenizer(story)) is None
    assert find_fim_tokens(make_tokenizer(tmp_path, ("<|fim_prefix|>", "<fim_suffix>", "<MID>"))) is None


TOKENS = ["<unk>", "a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("keys", "fim"),
    [
        ({"fim_pre": 1, "fim_suf": 2, "fim_mid": 3, "prefix": 4}, {"prefix": 1, "suffix": 2, "middle": 3}),
        ({"prefix": 3, "suffix": 2, "middle": 1}, {"prefix": 3, "suffix": 2, "middle": 1}),
        ({}, {}),
    ],
)
def test_fim_tokens_named_in_a_gguf_file(keys: dict[str, int], fim: dict[str, int]) -> None:
    named = {f"tokenizer.ggml.{key}_token_id": token for key, token in keys.items()}
    assert read_fim_ids(GgufVocabulary({"tokenizer.ggml.tokens": TOKENS, **named}, "x")) == fim


def test_a_fim_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ModelFileError, match="outside the 5 tokens"):
        read_fim_ids(GgufVocabulary({"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.fim_pre_token_id": 5}, "x"))


REAL = {
    "deepseek-coder": "<｜begin▁of▁sentence｜><｜fim▁begin｜>def f(<｜fim▁hole｜>): <s><｜fim▁end｜>",
    "starcoder": "<fim_prefix>def f(<fim_suffix>): <s><fim_middle>",
}


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies(name: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "data" / "vocabs" / f"ggml-vocab-{name}.gguf")
    fim = find_fim_tokens(tokenizer)
    assert fim is not None
    assert join_pieces(tokenizer, encode_fim_prompt(tokenizer, fim, "def f(", "): <s>")) == REAL[name]


def test_the_suffix_gets_no_prefix_space(shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "data" / "vocabs" / "ggml-vocab-llama-spm.gguf")
    fim = FimTokens(259, 260, 261, frozenset())
    for suffix in ("return", " return", "\nreturn", "é", "):"):
        ids = encode_fim_prompt(tokenizer, fim, "def", suffix)
        assert tokenizer.decode(ids[ids.index(260) + 1 : -1], continues=True) == suffix
