"""Loads a tokenizer from a path or an open GGUF file; the kind of file decides how."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.files.gguf import GgufFile


def load_tokenizer(source: "str | PathLike[str] | GgufFile") -> Tokenizer:
    """Return the tokenizer of a GGUF file (a vocabulary-only file too) or of a Hugging Face folder.

    `source` is a path, or an open GGUF file. Raises ModelNotFound, ModelFileError for a damaged vocabulary, and
    UnsupportedModel for an unsupported kind of tokenizer.
    """
    if not isinstance(source, (str, PathLike)):
        return load_gguf_tokenizer(source.metadata, str(source.path))
    path = Path(source)
    if path.is_dir():
        from sporelm.text.tokenizers.hf_tokenizer import load_hf_tokenizer

        return load_hf_tokenizer(path)
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist; give a GGUF file or a folder with a tokenizer.json")
    if path.name == "tokenizer.json":
        from sporelm.text.tokenizers.hf_tokenizer import load_hf_tokenizer

        return load_hf_tokenizer(path.parent)
    if path.suffix == ".model":
        from sporelm.text.tokenizers.hf_sentencepiece import load_hf_sentencepiece

        return load_hf_sentencepiece(path)
    from sporelm.files.gguf import open_gguf

    with open_gguf(path) as file:
        return load_gguf_tokenizer(file.metadata, str(path))


def load_gguf_tokenizer(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of a GGUF file's metadata. Raises as `load_tokenizer`."""
    model = metadata.get("tokenizer.ggml.model")
    if model is not None and not isinstance(model, str):
        raise ModelFileError(
            f"{label}: tokenizer.ggml.model is a {type(model).__name__}, not a str; the vocabulary is damaged"
        )
    if model == "llama":
        from sporelm.text.tokenizers.gguf_sentencepiece import load_gguf_sentencepiece

        return load_gguf_sentencepiece(metadata, label)
    if model == "t5":
        from sporelm.text.tokenizers.gguf_unigram import load_gguf_unigram

        return load_gguf_unigram(metadata, label)
    if model == "bert":
        from sporelm.text.tokenizers.gguf_wordpiece import load_gguf_wordpiece

        return load_gguf_wordpiece(metadata, label)
    if model == "plamo2":
        from sporelm.text.tokenizers.gguf_plamo import load_gguf_plamo

        return load_gguf_plamo(metadata, label)
    if model == "rwkv":
        from sporelm.text.tokenizers.gguf_rwkv import load_gguf_rwkv

        return load_gguf_rwkv(metadata, label)
    from sporelm.text.tokenizers.gguf_bpe import load_gguf_bpe

    return load_gguf_bpe(metadata, label)
