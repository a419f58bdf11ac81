"""Redaction of the server's paths: error messages for clients name models, never files."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sporelm.serve.model_pool.served_model import ServedModel
    from sporelm.serve.serve_config import ModelSpec

# An absolute path of two parts or more, of Unix or of Windows. Its last part may be shown.
_PATH = re.compile(r"(?<![\w.:/#~\\-])(?:[A-Za-z]:[\\/]|\\\\|/)(?:[^\s'\":;,()\\/]+[\\/])+([^\s'\":;,()\\/]*)")


def redact_paths(text: str) -> str:
    """Return a text with only the last part of each path in it."""
    return _PATH.sub(lambda match: match[1] or "...", text)


def replace_paths(text: str, names: Mapping[str, str]) -> str:
    """Return a text with each path of `names` replaced by its name."""
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def spec_paths(spec: "ModelSpec", *more_paths: str) -> dict[str, str]:
    """Map the paths of a model's specification, and further paths of the model, to its name."""
    files = [path for path in (spec.path, spec.mmproj) if path is not None]
    given = [*files, *(str(Path(path).absolute()) for path in files)]
    return {path: spec.name for path in (*given, *more_paths) if "/" in path or "\\" in path}


def model_paths(model: "ServedModel", spec: "ModelSpec") -> dict[str, str]:
    """Map the paths that errors of a loaded model may name to the model's name."""
    llm = model.llm
    return spec_paths(spec, str(llm.path), llm.tokenizer.label) if llm.is_open else {}
