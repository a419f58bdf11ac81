"""rwkv_vocab_v20230424.txt, as folders of RWKV have it: a token a line, its number, its text as Python writes it, and
how many bytes it has. Token 0, which ends a text, is in no line (BlinkDL 2023, rwkv_tokenizer.py)."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.text.gguf_rwkv import rwkv_of_gguf
from sporelm.text.gguf_vocabulary import MAX_TOKENS
from sporelm.text.hf_folder import MAX_TOKENIZER_BYTES, Folder, bytes_of
from sporelm.text.longest_match import escaped
from sporelm.text.token_types import CONTROL, NORMAL, UNUSED
from sporelm.text.tokenizer import Tokenizer

FILE = "rwkv_vocab_v20230424.txt"
END = "<s>"  # what llama.cpp's converter calls token 0
_LINE = re.compile(r"([0-9]{1,8}) (b?)('.*'|\".*\") ([0-9]{1,5})", re.DOTALL)


def rwkv_of_folder(path: Path) -> Tokenizer:
    """The tokenizer of such a file, with the small files beside it. Raises ModelFileError for a damaged one."""
    folder = Folder(path.parent)
    tokens, types = listed(folder, path)
    values: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    values |= {f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos")}
    made = rwkv_of_gguf(values, str(path))
    ends = {token for token in folder.ids("eos_token_id") if token < len(tokens)}
    made.special = replace(made.special, stop_ids=made.special.stop_ids | ends)
    made.chat_templates = folder.chat_templates()
    return made


def listed(folder: Folder, path: Path) -> tuple[list[str], list[int]]:
    """Texts, as GGUF files have them, and types by id; ids between that no line has are unused."""
    found = dict(
        _token(line, path) for line in bytes_of(path, MAX_TOKENIZER_BYTES).decode("utf-8", "replace").split("\n")
    )
    found.pop(0, None)  # of empty lines
    count = max(found, default=0) + 1
    if not 1 < count <= MAX_TOKENS:
        raise ModelFileError(f"{path} lists {count - 1} tokens, not 1 to {MAX_TOKENS}; it is damaged")
    tokens = [escaped(found[token]) if token in found else f"[PAD{token}]" for token in range(count)]
    tokens[0] = _end(folder, tokens)
    return tokens, [CONTROL, *(NORMAL if token in found else UNUSED for token in range(1, count))]


def _token(line: str, path: Path) -> tuple[int, bytes]:
    if not line.strip():
        return 0, b""
    match = _LINE.fullmatch(line.rstrip("\r"))
    try:
        if match is None:
            raise ValueError("no such line")
        inner = match[3][1:-1]
        # Most texts need no parser.
        text = inner if "\\" not in inner and not match[2] else ast.literal_eval(match[2] + match[3])
        token = text.encode() if isinstance(text, str) else text
        if not isinstance(token, bytes) or len(token) != int(match[4]):
            raise ValueError("another length")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ModelFileError(f"{path}: {line[:60]!r} is no number, token and length; the file is damaged") from None
    return int(match[1]), token


def _end(folder: Folder, tokens: list[str]) -> str:
    """The text of token 0, as the small files have it."""
    added = folder.config.get("added_tokens_decoder")
    entry = added.get("0") if isinstance(added, dict) else None
    content = entry.get("content") if isinstance(entry, dict) else None
    names = folder.names()
    wanted = [content, *(names.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token"))]
    known = {*tokens}
    return next(
        (text for text in wanted if isinstance(text, str) and text and escaped(text.encode()) not in known), END
    )
