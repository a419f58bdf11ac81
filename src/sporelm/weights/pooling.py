"""How a model's makers make one vector out of a text's rows, as its files say it.

GGUF: the key pooling_type, numbered as llama.h numbers them. Folders: modules.json and the configuration of its Pooling
module, as sentence-transformers writes them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.weights.fields import Fields, shown
from sporelm.weights.json_object import read_json, read_object

GGUF_POOLINGS = ("none", "mean", "cls", "last", "rank")
POOLINGS = ("mean", "cls", "last")  # those that make one vector
FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
WORDS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
KNOWN = ("Transformer", "Pooling", "Normalize")  # vectors are normalized if that is asked for, as it is by default


def pooling_of_gguf(fields: Fields) -> str:
    """One of POOLINGS; "" where the file does not say, or says that there is none. Raises ModelFileError."""
    found = GGUF_POOLINGS[fields.integer("pooling_type", 0, len(GGUF_POOLINGS) - 1, 0)]
    return found if found in POOLINGS else ""


def pooling_of_folder(folder: Path) -> str:
    """The same of a Hugging Face folder.

    Raises UnsupportedModel for a module or a way of pooling that we do not compute, ModelFileError for damaged files.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return ""
    found = ""
    for module in _modules(path):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in KNOWN:
            raise UnsupportedModel(f"{path}: the module {shown(kind)} is not supported; {', '.join(KNOWN)} are")
        if kind == "Pooling":
            place = module.get("path")
            if not isinstance(place, str) or not place or Path(place).is_absolute() or ".." in Path(place).parts:
                raise ModelFileError(f"{path}: the path of a module is {shown(place)}; it must be a folder in this one")
            found = _pooling(folder / place / "config.json")
    return found


def _modules(path: Path) -> list[Mapping[str, Any]]:
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelFileError(f"{path} must be a list of modules")
    return modules


def _pooling(path: Path) -> str:
    values = read_object(path)
    flags = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    named = [FLAGS.get(name, name) for name in flags] or [WORDS.get(str(values.get("pooling_mode")), "")]
    if len(named) != 1 or named[0] not in POOLINGS:
        given = ", ".join(flags) or shown(values.get("pooling_mode"))
        raise UnsupportedModel(f"{path}: pooling by {given} is not supported; one of {', '.join(FLAGS)} is")
    return named[0]
