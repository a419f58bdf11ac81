"""Joining the files of a split model into one; the bytes of its tensors do not change."""

from collections.abc import Sequence
from pathlib import Path

from sporelm.errors import RequestError
from sporelm.tools.lazy_model import open_lazy_model
from sporelm.tools.model_files import find_models
from sporelm.tools.output_file import OutputFile
from sporelm.tools.split_model import strip_split_suffix


def find_split_model(words: Sequence[str]) -> Path:
    """The first file of the one split model that paths and patterns stand for. Raises RequestError if they are several
    models, ModelNotFound."""
    models = find_models(words)
    if len(models) > 1:
        raise RequestError(
            f"{models[0]} and {models[1]} are not of one split model, or its first file is missing; merge one at a time"
        )
    return models[0]


def merge_splits(path: Path, output: Path | None = None) -> OutputFile:
    """Return the split model with the first file `path`, to be saved as one file; by default STEM.gguf beside it.

    Raises ModelNotFound, ModelFileError, UnsupportedModel, and RequestError if it is one file already.
    """
    model = open_lazy_model(path)
    if len(model.paths) < 2 and output is None:
        raise RequestError(f"{path} is one file already; -o OUT copies it")
    return OutputFile(output if output is not None else path.with_name(f"{strip_split_suffix(path)}.gguf"), model)
