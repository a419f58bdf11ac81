"""The folders of the store: valid names, and the model file in a folder."""

import re
from pathlib import Path

from sporelm.errors import ModelNotFound

HUB = "hf"  # the folder of the hub's models, which no stored model may be called
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
FIRST_SPLIT = re.compile(r"-00001-of-\d{5}\.gguf$")
ANY_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def is_name(name: str) -> bool:
    """Return whether this is a valid name of a stored model."""
    return NAME.fullmatch(name) is not None and name != HUB


def check_name(name: str) -> str:
    """Return `name`. Raises ModelNotFound if it is not a valid name, such as one that leaves the store."""
    if not is_name(name):
        raise ModelNotFound(f"{name[:100]!r} is not a valid model name: at most 96 letters, digits, '.', '_' and '-'")
    return name


def has_model(folder: Path) -> bool:
    """Return whether a folder has a model's files."""
    return (folder / "config.json").is_file() or any(folder.glob("*.gguf"))


def find_model_path(folder: Path) -> Path:
    """Return the model in a folder: the folder itself if it is a Hugging Face folder, else its only GGUF model."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(
        path for path in folder.glob("*.gguf") if FIRST_SPLIT.search(path.name) or not ANY_SPLIT.search(path.name)
    )
    if len(files) == 1:
        return files[0]
    if not files:
        raise ModelNotFound(f"no model in {str(folder)!r}: neither config.json nor a .gguf file is there")
    choices = ", ".join(path.name for path in files[:8])
    raise ModelNotFound(f"{len(files)} models in {str(folder)!r}: name one of {choices}")
