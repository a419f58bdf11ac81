"""From a path to a tokenizer: which kind of file it is decides who builds it."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.errors import ModelNotFound, UnsupportedModel
from sporelm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.weights.gguf import GgufFile


def load_tokenizer(source: "str | PathLike[str] | GgufFile") -> Tokenizer:
    """The tokenizer of a GGUF file (one with a vocabulary only will do), or of a Hugging Face folder.

    `source` is a path, or a GGUF file that is open already. Raises ModelNotFound, ModelFileError for a damaged
    vocabulary, and UnsupportedModel for a kind of tokenizer that we lack.
    """
    from sporelm.text.gguf_bpe import tokenizer_of_gguf

    if not isinstance(source, (str, PathLike)):
        return tokenizer_of_gguf(source.metadata, str(source.path))
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
        raise UnsupportedModel(
            f"{path} is a SentencePiece model, which is not supported; a tokenizer.json or a GGUF BPE vocabulary is"
        )
    from sporelm.weights.gguf import open_gguf

    with open_gguf(path) as file:
        return tokenizer_of_gguf(file.metadata, str(path))
