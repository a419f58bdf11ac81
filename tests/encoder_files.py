"""Folders of tiny encoders with tokenizers of the kinds that theirs have."""

import json
from pathlib import Path
from typing import Any

from families import Case, write_case
from hf_folders import tokenizer_json

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET_SPECIAL = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def write_encoder(folder: Path, case: Case) -> Path:
    """A Hugging Face folder of the model, with a tokenizer."""
    write_case(folder, case)
    size, kind = case.config["vocab_size"], case.config["model_type"]
    spec, config = TOKENIZERS.get(kind, wordpieces)(size)
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _around(begin: str, end: str, between: tuple[str, ...], ids: dict[str, int], second: int) -> dict[str, Any]:
    """The post-processor: what stands before, after and between texts."""

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special(begin, 0), text("A", 0), special(end, 0)]
    middle = [special(name, 0) for name in between]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [special(begin, 0), text("A", 0), *middle, text("B", second), special(end, second)],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in {begin, end, *between}},
    }


def _added(words: list[str], special: tuple[str, ...]) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": words.index(name), "content": name, "special": True} | flags for name in special]


def _filled(words: list[str], size: int, mark: str = "") -> list[str]:
    """Extend `words` to `size` with words of two and three letters."""
    more = (f"{mark}{a}{b}{c}" for c in ("", *LETTERS) for a in LETTERS for b in LETTERS)
    return [*words, *(word for _, word in zip(range(size - len(words)), more, strict=False))]


def mpnet_pieces(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """MPNet's: BERT's, with special tokens like RoBERTa's."""
    spec, config = wordpieces(size, MPNET_SPECIAL, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"))
    spec["post_processor"] = _around("<s>", "</s>", ("</s>", "</s>"), spec["model"]["vocab"], 0)
    return spec, config | {"tokenizer_class": "MPNetTokenizer"}


def wordpieces(
    size: int, special: tuple[str, ...] = BERT_SPECIAL, order: tuple[str, ...] = BERT_SPECIAL
) -> tuple[dict[str, Any], dict[str, Any]]:
    """BERT's: words, and parts that go on with them. `special` are those for padding, the unknown, the beginning, the
    end and gaps, in the order of their ids `order`."""
    words = _filled([*order, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", ",", "?"], size)
    ids = {word: number for number, word in enumerate(words)}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(words, special),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _around(special[2], special[3], (special[3],), ids, 1),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return spec, {**names, "tokenizer_class": "BertTokenizer", "do_lower_case": True}


ROBERTA_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}


def unigram(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """XLM-RoBERTa's."""
    words = _filled([*ROBERTA_SPECIAL, "▁", *LETTERS, *(f"▁{letter}" for letter in LETTERS)], size, "▁")
    ids = {word: number for number, word in enumerate(words)}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(words, ROBERTA_SPECIAL),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": _around("<s>", "</s>", ("</s>", "</s>"), ids, 0),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": 3,
            "vocab": [[word, 0.0 if number < 5 else -1.0 - number / 100] for number, word in enumerate(words)],
            "byte_fallback": False,
        },
    }
    return spec, {**ROBERTA_NAMES, "tokenizer_class": "XLMRobertaTokenizer"}


def bytes_like(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """RoBERTa's: GPT-2's, with other special tokens."""
    spec = tokenizer_json(size)
    return spec, {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}


TOKENIZERS = {  # by model_type; others have BERT's
    "roberta": bytes_like,
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "camembert", "jina_embeddings_v3"), unigram),
    "mpnet": mpnet_pieces,
}
