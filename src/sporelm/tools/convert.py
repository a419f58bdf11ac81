"""Changing a model by a list of steps; `merge` is the empty list."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from sporelm.errors import RequestError
from sporelm.tools.lazy_model import LazyModel
from sporelm.tools.output_file import OutputFile
from sporelm.tools.steps import Step


def convert_model(model: LazyModel, steps: Sequence[Step], path: Path) -> OutputFile:
    """The model after all steps, to be saved as one file. Nothing is read yet; raises what the steps raise, and
    RequestError if two tensors got the same name."""
    done = reduce(lambda before, step: step(before), steps, model)
    names = [tensor.name for tensor in done.tensors]
    if len(set(names)) < len(names):
        raise RequestError("the steps would make two tensors of one name; nothing was written")
    return OutputFile(path, done)
