"""vocab.json and merges.txt, as folders from before tokenizer.json have them: byte-level BPE in two files.

How each class of transformers cuts text and what it puts around it: its convert_slow_tokenizer.py.
"""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.hf_folder import MAX_TOKENIZER_BYTES, Folder, bytes_of
from sporelm.text.tokenizer import one_line

# Classes that cut as GPT-2 does, and those that first normalize and then cut as Qwen2 does.
_LIKE_GPT2 = ("", "GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer")
_LIKE_QWEN2 = ("Qwen2Tokenizer",)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def spec_of_vocabulary_files(folder: Folder) -> dict[str, Any] | None:
    """A folder's vocab.json and merges.txt as the tokenizer.json they amount to; None where one of them is not there.

    Raises ModelFileError for damaged files, UnsupportedModel for a class that does more than cut and merge.
    """
    vocab, merges = folder.path / "vocab.json", folder.path / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        return None
    name = str(folder.config.get("tokenizer_class") or "").removesuffix("Fast")
    if name not in (*_LIKE_GPT2, *_LIKE_QWEN2):
        raise UnsupportedModel(
            f"{folder.path}: how {name[:60]} uses vocab.json and merges.txt is not known here; save a tokenizer.json"
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": bool(folder.flag("add_prefix_space")), "trim_offsets": True}
    pre: dict[str, Any] = byte_level | {"use_regex": True}
    if name in _LIKE_QWEN2:
        split = {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False}
        pre = {"type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]}
    ids = _ids(vocab)
    added = [_added(text, token) for text, token in _more(folder, ids).items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if name in _LIKE_QWEN2 else None,
        "pre_tokenizer": pre,
        "post_processor": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": _merges(merges)},
    }


def _ids(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(bytes_of(path, MAX_TOKENIZER_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {one_line(error)}") from None
    if not isinstance(ids, dict) or not all(type(token) is int and token >= 0 for token in ids.values()):
        raise ModelFileError(f"{path} is no table of tokens and their ids")
    return ids


def _merges(path: Path) -> list[str]:
    """A merge a line; the first line may be a comment."""
    lines = bytes_of(path, MAX_TOKENIZER_BYTES).decode("utf-8", "replace").split("\n")
    if lines and lines[0].startswith("#version"):
        del lines[0]
    return [line for line in (line.rstrip("\r") for line in lines) if line]


def _more(folder: Folder, ids: dict[str, int]) -> dict[str, int]:
    """The named tokens, which the class recognises in text: those of the vocabulary; GPT-2's where none is named."""
    names = set(folder.names().values()) or {"<|endoftext|>"}
    return {text: ids[text] for text in sorted(names, key=lambda text: ids.get(text, -1)) if text in ids}


def _added(text: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True} | flags
