"""The names of special tokens for pictures in Hugging Face folders."""

from pathlib import Path

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.files.json_object import read_object


def read_token(folder: Path, key: str, default: str) -> str:
    """Return the text of a special token from tokenizer_config.json, else processor_config.json, else the default.
    Raises ModelFileError for a value that is not text."""
    for name in ("tokenizer_config.json", "processor_config.json"):
        path = folder / name
        values = ConfigValues(read_object(path) if path.exists() else {}, str(path))
        found = values.get(key)
        if isinstance(found, dict):  # an AddedToken
            found = found.get("content")
        if found is not None:
            return values.with_values({key: found}).text(key)
    return default
