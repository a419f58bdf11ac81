"""The pooling that turns the rows of a text into one vector, as a model's files describe it.

GGUF: the key pooling_type, with the numbers of llama.h. Folders: modules.json and the configuration of its Pooling
module, as sentence-transformers writes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.dense import check_dense_widths, dense_json, read_dense_module
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_json, read_object
from sporelm.models.config import ModelConfig
from sporelm.models.dense_layers import Dense

GGUF_POOLINGS = ("none", "mean", "cls", "last", "rank")
POOLINGS = ("mean", "cls", "last")  # with one vector as the result
MODE_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
WIDTH_KEYS = ("word_embedding_dimension", "embedding_dimension")  # names of the row width in the configuration
MODE_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Module -> modules that may precede it. A final Normalize is optional: users choose whether vectors are normalized.
ALLOWED_BEFORE = {
    "Transformer": ("Transformer",),
    "Pooling": ("Transformer",),
    "Dense": ("Pooling", "Dense", "Normalize"),
    "Normalize": ("Transformer", "Pooling", "Dense", "Normalize"),
}
KNOWN_MODULES = tuple(ALLOWED_BEFORE)


def read_gguf_pooling(fields: ConfigValues) -> str:
    """Return one of POOLINGS; "" without the key or for no pooling. Raises ModelFileError."""
    found = GGUF_POOLINGS[fields.integer("pooling_type", 0, len(GGUF_POOLINGS) - 1, 0)]
    return found if found in POOLINGS else ""


class PoolingModules(NamedTuple):
    """The pooling of a folder, one of POOLINGS or "" if it has none, and the Dense modules after it."""

    pooling: str = ""
    dense: tuple[Dense, ...] = ()


def read_folder_pooling(folder: Path, width: int) -> PoolingModules:
    """Return the pooling of a Hugging Face folder whose model has rows of this width. The order of modules is checked.

    Raises UnsupportedModel for an unsupported module or pooling, ModelFileError for damaged files and for another
    width.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return PoolingModules()
    pooling, layers, before, unit = "", list[Dense](), "", False
    for kind, module in _read_modules(path):
        if kind not in KNOWN_MODULES:
            raise UnsupportedModel(
                f"{path}: the module {format_value(kind)} is not supported; {', '.join(KNOWN_MODULES)} are"
            )
        if (before or "Transformer") not in ALLOWED_BEFORE[kind]:
            raise UnsupportedModel(
                f"{path}: {kind} after {before} is not supported; {' or '.join(ALLOWED_BEFORE[kind])} is"
            )
        before = kind
        if kind == "Pooling":
            pooling = _read_pooling(folder / _module_folder(path, module) / "config.json", width)
        elif kind == "Dense":
            layers.append(read_dense_module(folder, _module_folder(path, module), len(layers), unit=unit))
        unit = kind == "Normalize"
    return PoolingModules(pooling, check_dense_widths(layers, width, str(path)))


def find_pooling_configs(folder: Path) -> list[Path]:
    """Return the configuration files of a folder's Pooling modules. Raises ModelFileError."""
    path = folder / "modules.json"
    modules = _read_modules(path) if path.is_file() else []
    return [folder / _module_folder(path, module) / "config.json" for kind, module in modules if kind == "Pooling"]


def name_dense_folders(config: ModelConfig) -> ModelConfig:
    """Return the configuration with a subfolder for each Dense module."""
    layers = (layer._replace(folder=f"{number}_Dense") for number, layer in enumerate(config.dense, 2))
    return replace(config, dense=tuple(layers))


def modules_json(pooling: str, layers: Sequence[Dense], width: int) -> dict[str, str]:
    """Return the text of modules.json and of the configurations of its modules, by file name, for a folder that we
    write."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    files: dict[str, Any] = {"1_Pooling/config.json": {"word_embedding_dimension": width, **pooling_flags(pooling)}}
    for layer in layers:
        kinds.append(("Dense", layer.folder))
        files[f"{layer.folder}/config.json"] = dense_json(layer)
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    files["modules.json"] = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(kinds)
    ]
    return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}


def pooling_flags(pooling: str) -> dict[str, bool]:
    """Return the flags in the configuration of a Pooling module."""
    return {flag: name == pooling for flag, name in MODE_FLAGS.items()}


def _module_folder(path: Path, module: Mapping[str, Any]) -> str:
    """Return the subfolder of a module. Raises ModelFileError for a path outside the model's folder."""
    place = module.get("path")
    if not isinstance(place, str) or not place or Path(place).is_absolute() or ".." in Path(place).parts:
        raise ModelFileError(f"{path}: the path of a module is {format_value(place)}; it must be a subfolder")
    return place


def _read_modules(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the class name and the entry of each module. Raises ModelFileError."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelFileError(f"{path} must be a list of modules")
    return [(str(module.get("type", "")).rpartition(".")[2], module) for module in modules]


def _read_pooling(path: Path, width: int) -> str:
    values = read_object(path)
    for key in WIDTH_KEYS:
        if (given := values.get(key, width)) != width:
            what = f"{key} is {format_value(given)}, the width of the model is {width}"
            raise ModelFileError(f"{path}: {what}; one of the two belongs to another model")
    flags = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    names = [MODE_FLAGS.get(name, name) for name in flags] or [MODE_NAMES.get(str(values.get("pooling_mode")), "")]
    if len(names) != 1 or names[0] not in POOLINGS:
        given = ", ".join(flags) or format_value(values.get("pooling_mode"))
        raise UnsupportedModel(f"{path}: pooling by {given} is not supported; one of {', '.join(MODE_FLAGS)} is")
    return names[0]
