"""Reading the JSON files of Hugging Face folders: small, read whole, and untrusted."""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, ModelNotFound

LONGEST_CONFIG = 1 << 24  # bytes of a config.json


def read_object(path: Path, longest: int = LONGEST_CONFIG) -> dict[str, Any]:
    """The object in a JSON file of at most `longest` bytes.

    Raises ModelNotFound without the file, ModelFileError for anything but an object.
    """
    values = read_json(path, longest)
    if not isinstance(values, dict):
        raise ModelFileError(f"{path} must hold a JSON object, it holds a {type(values).__name__}")
    return values


def read_json(path: Path, longest: int = LONGEST_CONFIG) -> Any:
    """Return the content of a JSON file of at most `longest` bytes. Raises as `read_object`."""
    try:
        if not path.is_file():
            raise ModelNotFound(f"{path} does not exist; a Hugging Face folder has one")
        if path.stat().st_size > longest:
            raise ModelFileError(f"{path} has {path.stat().st_size} bytes; the limit is {longest}")
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise ModelFileError(f"{path} is not readable JSON: {str(reason)[:120]}") from None
