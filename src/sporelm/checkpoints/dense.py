"""Layers that a text's vector goes through once its rows are pooled, as sentence-transformers' Dense modules have them.

A folder holds each in a folder of its own: config.json and model.safetensors with `linear.weight`, `linear.bias`.
GGUF files of EmbeddingGemma hold them as the tensors dense_2.weight and dense_3.weight.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues, shown
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import SafetensorsFiles, joined, open_safetensors
from sporelm.models.dense_layers import PARTS, Dense

ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu"}  # classes of torch.nn -> how we compute them
MAX_OUT = 1 << 20
FIRST = 2  # number of the first in names: its module usually follows the model and the pooling


def dense_of_folder(folder: Path, place: str, number: int, *, unit: bool) -> Dense:
    """The module in a folder's folder `place`, the `number`th of its kind.

    Raises UnsupportedModel for what we do not compute, ModelFileError for damaged files.
    """
    path = folder / place / "config.json"
    values = ConfigValues(read_object(path), str(path))
    named = values.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if named not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(f"{path}: activation_function {shown(named)} is not supported; {known} are")
    for key in ("module_input_name", "module_output_name"):
        if (given := values.values.get(key)) not in (None, "sentence_embedding"):
            raise UnsupportedModel(f"{path}: {key} {shown(given)} is not supported; sentence_embedding is")
    return Dense(
        f"dense_{FIRST + number}",
        values.integer("in_features", 1, MAX_OUT),
        values.integer("out_features", 1, MAX_OUT),
        values.flag("bias", True),
        ACTIVATIONS[named],
        unit,
        place,
    )


def dense_of_shapes(shapes: Mapping[str, tuple[int, ...]], where: str) -> tuple[Dense, ...]:
    """Those that a GGUF file's tensors tell, which have neither biases nor activations."""
    found = []
    for number in range(FIRST, FIRST + 2):
        shape = shapes.get(f"dense_{number}.weight")
        if shape is not None and len(shape) != 2:
            raise ModelFileError(f"{where}: dense_{number}.weight is {list(shape)}; it must be a matrix")
        if shape is not None:
            found.append(Dense(f"dense_{number}", shape[1], shape[0]))
    return tuple(found)


def sayable(layers: Sequence[Dense], width: int) -> bool:
    """Whether GGUF files can hold them: two plain matrices, behind which a vector is as wide as before."""
    plain = not any(layer.bias or layer.activation or layer.unit for layer in layers)
    return plain and len(layers) == 2 and layers[-1].out == width


def fitting(layers: Sequence[Dense], width: int, where: str) -> tuple[Dense, ...]:
    """The layers, if each takes what is before it, the first the model's width. Raises ModelFileError."""
    for layer in layers:
        if layer.width != width:
            raise ModelFileError(
                f"{where}: {layer.folder or layer.name} takes {layer.width} numbers; it is given {width}"
            )
        width = layer.out
    return tuple(layers)


def with_dense(files: SafetensorsFiles, folder: Path, layers: Sequence[Dense]) -> SafetensorsFiles:
    """A folder's tensors, and those of its modules under our names. Raises ModelNotFound, ModelFileError."""
    for layer in layers:
        own = open_safetensors(folder / layer.folder)
        files = joined(files, own, {f"linear.{part}": f"{layer.name}.{part}" for part in PARTS})
    return files


def dense_words(layer: Dense) -> dict[str, Any]:
    """The config.json of a module."""
    named = next(name for name, activation in ACTIVATIONS.items() if activation == layer.activation)
    kind = "linear" if named == "Identity" else "activation"
    numbers = {"in_features": layer.width, "out_features": layer.out, "bias": layer.bias}
    return {**numbers, "activation_function": f"torch.nn.modules.{kind}.{named}"}
