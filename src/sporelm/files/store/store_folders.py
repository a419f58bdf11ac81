"""The folders of the store: which names they may have, and which file in one is the model."""

import re
from pathlib import Path

from sporelm.errors import ModelNotFound

HUB = "hf"  # the folder of the hub's models, which no stored model may be called
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
FIRST_SPLIT = re.compile(r"-00001-of-\d{5}\.gguf$")
ANY_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def is_name(name: str) -> bool:
    """Whether a stored model can have this name."""
    return NAME.fullmatch(name) is not None and name != HUB


def checked_name(name: str) -> str:
    """`name` itself, if it can be a stored model's name; anything that could leave the store is refused."""
    if not is_name(name):
        raise ModelNotFound(f"{name[:100]!r} cannot be a model's name: at most 96 letters, digits, '.', '_' and '-'")
    return name


def holds_model(folder: Path) -> bool:
    """Whether a model's files are in a folder."""
    return (folder / "config.json").is_file() or any(folder.glob("*.gguf"))


def folder_content(folder: Path) -> Path:
    """The model that a folder holds: itself if it is a Hugging Face folder, else its only GGUF file or first split."""
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
