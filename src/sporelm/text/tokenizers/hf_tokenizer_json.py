"""Reads a tokenizer.json, or builds its equivalent from older files, and hands it to the `tokenizers` library."""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.hf_bpe_files import read_bpe_files
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes
from sporelm.text.tokenizers.hf_wordpiece_files import read_vocab_txt
from sporelm.text.tokenizers.tokenizers_library import check_tokenizer_json, limit_word_cache, parse_tokenizer_json


def read_tokenizer_json(folder: TokenizerFolder) -> tuple[dict[str, Any], Path] | None:
    """Return the folder's tokenizer.json, or the equivalent of vocab.json and merges.txt, or of vocab.txt, and the file
    that errors name. Return None if the folder has none of them."""
    path = folder.path / "tokenizer.json"
    if path.is_file():
        return _parse(path, read_limited_bytes(path, MAX_TOKENIZER_BYTES)), path
    if (spec := read_bpe_files(folder)) is not None:
        return spec, folder.path / "vocab.json"
    if (spec := read_vocab_txt(folder)) is not None:
        return spec, folder.path / "vocab.txt"
    return None


def load_library_tokenizer(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json. To be called inside `catch_library_errors`."""
    data = read_limited_bytes(path, MAX_TOKENIZER_BYTES)
    check_tokenizer_json(_parse(path, data), str(path))  # the parsed object is large: it is not kept
    return _configure(parse_tokenizer_json(data, str(path)))


def build_library_tokenizer(spec: dict[str, Any], label: str) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json's contents. To be called inside `catch_library_errors`."""
    check_tokenizer_json(spec, label)
    return _configure(parse_tokenizer_json(json.dumps(spec), label))


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {summarize_error(error)}") from None
    if not isinstance(spec, dict):
        raise ModelFileError(f"{path} holds a {type(spec).__name__}, not an object")
    return spec


def _configure(tokenizer: Any) -> Any:
    tokenizer.encode_special_tokens = False
    limit_word_cache(tokenizer)
    return tokenizer


def add_missing_tokens(tokenizer: Any, folder: TokenizerFolder) -> None:
    """Add the tokens that only tokenizer_config.json has; their ids must be the ones it gives."""
    from tokenizers import AddedToken as LibraryAddedToken

    entries = folder.config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not an object")
    try:
        tokens = sorted((int(key), entry["content"], entry) for key, entry in entries.items())
    except (KeyError, TypeError, ValueError):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not a table of token ids") from None
    for token, content, entry in tokens:
        if not isinstance(content, str):
            raise ModelFileError(f"{folder.path}: added_tokens_decoder {token} has no text")
        actual = tokenizer.token_to_id(content)
        if actual is None:
            flags = {k: bool(entry.get(k)) for k in ("lstrip", "rstrip", "normalized", "single_word", "special")}
            tokenizer.add_tokens([LibraryAddedToken(content, **flags)])
            actual = tokenizer.token_to_id(content)
        if actual != token:
            raise ModelFileError(
                f"{folder.path}: {content[:60]!r} is token {actual} in tokenizer.json but {token} beside it"
            )
