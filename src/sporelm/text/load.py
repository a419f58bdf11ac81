"""From a path to a tokenizer: which kind of file it is decides who builds it."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.weights.gguf import GgufFile


def load_tokenizer(source: "str | PathLike[str] | GgufFile") -> Tokenizer:
    """The tokenizer of a GGUF file (one with a vocabulary only will do), or of a Hugging Face folder.

    `source` is a path, or a GGUF file that is open already. Raises ModelNotFound, ModelFileError for a damaged
    vocabulary, and UnsupportedModel for a kind of tokenizer that we lack.
    """
    if not isinstance(source, (str, PathLike)):
        return _of_metadata(source.metadata, str(source.path))
    path = Path(source)
    if path.is_dir():
        from sporelm.text.hf_folder import tokenizer_of_folder

        return tokenizer_of_folder(path)
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist; give a GGUF file or a folder with a tokenizer.json")
    if path.name == "tokenizer.json":
        from sporelm.text.hf_folder import tokenizer_of_folder

        return tokenizer_of_folder(path.parent)
    if path.suffix == ".model":
        from sporelm.text.sentencepiece_folder import sentencepiece_of_folder

        return sentencepiece_of_folder(path)
    from sporelm.weights.gguf import open_gguf

    with open_gguf(path) as file:
        return _of_metadata(file.metadata, str(path))


def _of_metadata(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is not None and not isinstance(kind, str):
        raise ModelFileError(
            f"{label}: tokenizer.ggml.model is a {type(kind).__name__}, not a str; the vocabulary is damaged"
        )
    if kind == "llama":
        from sporelm.text.gguf_spm import spm_of_gguf

        return spm_of_gguf(metadata, label)
    if kind == "t5":
        from sporelm.text.gguf_unigram import unigram_of_gguf

        return unigram_of_gguf(metadata, label)
    if kind == "bert":
        from sporelm.text.gguf_wordpiece import wordpiece_of_gguf

        return wordpiece_of_gguf(metadata, label)
    if kind == "plamo2":
        from sporelm.text.gguf_plamo import plamo_of_gguf

        return plamo_of_gguf(metadata, label)
    if kind == "rwkv":
        from sporelm.text.gguf_rwkv import rwkv_of_gguf

        return rwkv_of_gguf(metadata, label)
    from sporelm.text.gguf_bpe import tokenizer_of_gguf

    return tokenizer_of_gguf(metadata, label)
