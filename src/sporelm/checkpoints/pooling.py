"""How a model's makers make one vector out of a text's rows, as its files say it.

GGUF: the key pooling_type, numbered as llama.h numbers them. Folders: modules.json and the configuration of its Pooling
module, as sentence-transformers writes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues, shown
from sporelm.checkpoints.dense import dense_of_folder, dense_words, fitting
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_json, read_object
from sporelm.models.config import ModelConfig
from sporelm.models.dense_layers import Dense

GGUF_POOLINGS = ("none", "mean", "cls", "last", "rank")
POOLINGS = ("mean", "cls", "last")  # those that make one vector
FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
WIDTHS = ("word_embedding_dimension", "embedding_dimension")  # what its configuration calls the width of rows
WORDS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Modules -> those that they may follow. Vectors are normalized at last if that is asked for, as it is by default.
FOLLOWS = {
    "Transformer": ("Transformer",),
    "Pooling": ("Transformer",),
    "Dense": ("Pooling", "Dense", "Normalize"),
    "Normalize": ("Transformer", "Pooling", "Dense", "Normalize"),
}
KNOWN = tuple(FOLLOWS)


def pooling_of_gguf(fields: ConfigValues) -> str:
    """One of POOLINGS; "" where the file does not say, or says that there is none. Raises ModelFileError."""
    found = GGUF_POOLINGS[fields.integer("pooling_type", 0, len(GGUF_POOLINGS) - 1, 0)]
    return found if found in POOLINGS else ""


class Pooled(NamedTuple):
    """How a folder's makers make one vector of a text: one of POOLINGS, "" where they do not say, and what it goes
    through then."""

    pooling: str = ""
    dense: tuple[Dense, ...] = ()


def pooling_of_folder(folder: Path, width: int) -> Pooled:
    """The same of a Hugging Face folder whose model has rows of this width. Modules count in their order.

    Raises UnsupportedModel for a module or a way of pooling that we do not compute, ModelFileError for damaged files,
    and for rows of another width.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return Pooled()
    pooling, layers, before, unit = "", list[Dense](), "", False
    for kind, module in _modules(path):
        if kind not in KNOWN:
            raise UnsupportedModel(f"{path}: the module {shown(kind)} is not supported; {', '.join(KNOWN)} are")
        if (before or "Transformer") not in FOLLOWS[kind]:
            raise UnsupportedModel(f"{path}: {kind} after {before} is not supported; {' or '.join(FOLLOWS[kind])} is")
        before = kind
        if kind == "Pooling":
            pooling = _pooling(folder / _place(path, module) / "config.json", width)
        elif kind == "Dense":
            layers.append(dense_of_folder(folder, _place(path, module), len(layers), unit=unit))
        unit = kind == "Normalize"
    return Pooled(pooling, fitting(layers, width, str(path)))


def pooling_files(folder: Path) -> list[Path]:
    """The configurations of a folder's Pooling modules. Raises ModelFileError."""
    path = folder / "modules.json"
    modules = _modules(path) if path.is_file() else []
    return [folder / _place(path, module) / "config.json" for kind, module in modules if kind == "Pooling"]


def with_places(config: ModelConfig) -> ModelConfig:
    """The configuration with a folder for each dense module."""
    placed = (layer._replace(folder=f"{number}_Dense") for number, layer in enumerate(config.dense, 2))
    return replace(config, dense=tuple(placed))


def modules_text(pooling: str, layers: Sequence[Dense], width: int) -> dict[str, str]:
    """modules.json and what belongs to it, by the names of files, for a folder that we write."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    files: dict[str, Any] = {"1_Pooling/config.json": {"word_embedding_dimension": width, **flags_of(pooling)}}
    for layer in layers:
        kinds.append(("Dense", layer.folder))
        files[f"{layer.folder}/config.json"] = dense_words(layer)
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    files["modules.json"] = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(kinds)
    ]
    return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}


def flags_of(pooling: str) -> dict[str, bool]:
    """The configuration of a Pooling module."""
    return {flag: named == pooling for flag, named in FLAGS.items()}


def _place(path: Path, module: Mapping[str, Any]) -> str:
    """The folder of a module in that of its model. Raises ModelFileError for one elsewhere."""
    place = module.get("path")
    if not isinstance(place, str) or not place or Path(place).is_absolute() or ".." in Path(place).parts:
        raise ModelFileError(f"{path}: the path of a module is {shown(place)}; it must be a folder in this one")
    return place


def _modules(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Each module's class, without where it is, and all that is said of it. Raises ModelFileError."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelFileError(f"{path} must be a list of modules")
    return [(str(module.get("type", "")).rpartition(".")[2], module) for module in modules]


def _pooling(path: Path, width: int) -> str:
    values = read_object(path)
    for key in WIDTHS:
        if (said := values.get(key, width)) != width:
            what = f"{key} is {shown(said)}, the model's rows have {width} numbers"
            raise ModelFileError(f"{path}: {what}; one of the two is of another model")
    flags = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    named = [FLAGS.get(name, name) for name in flags] or [WORDS.get(str(values.get("pooling_mode")), "")]
    if len(named) != 1 or named[0] not in POOLINGS:
        given = ", ".join(flags) or shown(values.get("pooling_mode"))
        raise UnsupportedModel(f"{path}: pooling by {given} is not supported; one of {', '.join(FLAGS)} is")
    return named[0]
