"""vocab.json and merges.txt: byte-level BPE in two files, the format before tokenizer.json.

Source of each class's pre-tokenizer and post-processor: transformers' convert_slow_tokenizer.py.
"""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes

# Classes with GPT-2's pre-tokenizer, and those with a normalizer and Qwen2's pre-tokenizer.
_GPT2_CLASSES = ("", "GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer")
_QWEN2_CLASSES = ("Qwen2Tokenizer",)
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_bpe_files(folder: TokenizerFolder) -> dict[str, Any] | None:
    """Return the tokenizer.json equivalent to a folder's vocab.json and merges.txt; None if one of them is absent.

    Raises ModelFileError for damaged files, UnsupportedModel for a class whose rules are not known.
    """
    vocab = folder.path / "vocab.json"
    merges = folder.path / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        return None
    name = str(folder.config.get("tokenizer_class") or "").removesuffix("Fast")
    if name not in (*_GPT2_CLASSES, *_QWEN2_CLASSES):
        raise UnsupportedModel(
            f"{folder.path}: tokenizer class is not supported with vocab.json and merges.txt (got {name[:60]!r}; "
            f"allowed {', '.join((*_GPT2_CLASSES[1:], *_QWEN2_CLASSES))}). Save a tokenizer.json."
        )
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": bool(folder.read_flag("add_prefix_space")),
        "trim_offsets": True,
    }
    pre: dict[str, Any] = byte_level | {"use_regex": True}
    if name in _QWEN2_CLASSES:
        split = {"type": "Split", "pattern": {"Regex": _QWEN2_PATTERN}, "behavior": "Isolated", "invert": False}
        pre = {"type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]}
    ids = _read_vocab(vocab)
    added = [_make_added_token(text, token) for text, token in _find_special_tokens(folder, ids).items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if name in _QWEN2_CLASSES else None,
        "pre_tokenizer": pre,
        "post_processor": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": _read_merges(merges)},
    }


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(read_limited_bytes(path, MAX_TOKENIZER_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {summarize_error(error)}") from None
    if not isinstance(ids, dict) or not all(type(token) is int and token >= 0 for token in ids.values()):
        raise ModelFileError(f"{path} is not a table of tokens and their ids")
    return ids


def _read_merges(path: Path) -> list[str]:
    """Return the merges, one from each line; the first line may be a comment."""
    lines = read_limited_bytes(path, MAX_TOKENIZER_BYTES).decode("utf-8", "replace").split("\n")
    if lines and lines[0].startswith("#version"):
        del lines[0]
    return [line for line in (line.rstrip("\r") for line in lines) if line]


def _find_special_tokens(folder: TokenizerFolder, ids: dict[str, int]) -> dict[str, int]:
    """Return the named tokens in the vocabulary, which the class matches in text; GPT-2's if none is named."""
    names = set(folder.read_names().values()) or {"<|endoftext|>"}
    return {text: ids[text] for text in sorted(names, key=lambda text: ids.get(text, -1)) if text in ids}


def _make_added_token(text: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True} | flags
