"""Joining the files of a split model into one; the bytes of its tensors do not change."""

from collections.abc import Sequence
from pathlib import Path

from sporelm.errors import RequestError
from sporelm.tools.lazy import open_model
from sporelm.tools.output import Output
from sporelm.tools.sources import find_models
from sporelm.tools.split import stem_of


def find_split(words: Sequence[str]) -> Path:
    """The first file of the one split model that paths and patterns stand for. Raises RequestError if they are several
    models, ModelNotFound."""
    models = find_models(words)
    if len(models) > 1:
        raise RequestError(
            f"{models[0]} and {models[1]} are not of one split model, or its first file is missing; merge one at a time"
        )
    return models[0]


def merge(path: Path, output: Path | None = None) -> Output:
    """The model of which `path` is the first file, to be saved as one file; STEM.gguf beside it by default.

    Raises ModelNotFound, ModelFileError, UnsupportedModel, and RequestError if it is one file already.
    """
    model = open_model(path)
    if len(model.paths) < 2 and output is None:
        raise RequestError(f"{path} is one file already; -o OUT copies it")
    return Output(output if output is not None else path.with_name(f"{stem_of(path)}.gguf"), model)
