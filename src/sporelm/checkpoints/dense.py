"""Dense layers that follow pooling, as sentence-transformers' Dense modules have them.

A folder has a subfolder for each: config.json and model.safetensors with `linear.weight`, `linear.bias`. GGUF files of
EmbeddingGemma hold them as the tensors dense_2.weight and dense_3.weight.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import SafetensorsFiles, joined, open_safetensors
from sporelm.models.dense_layers import PARTS, Dense

ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu"}  # classes of torch.nn -> our names
MAX_OUT = 1 << 20
FIRST = 2  # number of the first one in tensor names: modules 0 and 1 are the model and the pooling


def read_dense_module(folder: Path, place: str, number: int, *, unit: bool) -> Dense:
    """Return the Dense module in the subfolder `folder`, the `number`th of the model.

    Raises UnsupportedModel for an unsupported option, ModelFileError for damaged files.
    """
    path = folder / place / "config.json"
    values = ConfigValues(read_object(path), str(path))
    class_name = values.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if class_name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(f"{path}: activation_function {format_value(class_name)} is not supported; {known} are")
    for key in ("module_input_name", "module_output_name"):
        if (given := values.values.get(key)) not in (None, "sentence_embedding"):
            raise UnsupportedModel(f"{path}: {key} {format_value(given)} is not supported; sentence_embedding is")
    return Dense(
        f"dense_{FIRST + number}",
        values.integer("in_features", 1, MAX_OUT),
        values.integer("out_features", 1, MAX_OUT),
        values.flag("bias", True),
        ACTIVATIONS[class_name],
        unit,
        place,
    )


def read_dense_shapes(shapes: Mapping[str, tuple[int, ...]], where: str) -> tuple[Dense, ...]:
    """Return the Dense layers that the tensors of a GGUF file form; they have neither biases nor activations."""
    found = []
    for number in range(FIRST, FIRST + 2):
        shape = shapes.get(f"dense_{number}.weight")
        if shape is not None and len(shape) != 2:
            raise ModelFileError(f"{where}: dense_{number}.weight is {list(shape)}; it must be a matrix")
        if shape is not None:
            found.append(Dense(f"dense_{number}", shape[1], shape[0]))
    return tuple(found)


def fits_gguf(layers: Sequence[Dense], width: int) -> bool:
    """Return whether a GGUF file can hold the layers: two plain matrices that return a vector of the original width."""
    is_plain = not any(layer.bias or layer.activation or layer.unit for layer in layers)
    return is_plain and len(layers) == 2 and layers[-1].out == width


def check_dense_widths(layers: Sequence[Dense], width: int, where: str) -> tuple[Dense, ...]:
    """Return the layers. Raises ModelFileError unless each accepts the output of the one before it, and the first the
    model's width."""
    for layer in layers:
        if layer.width != width:
            raise ModelFileError(f"{where}: {layer.folder or layer.name} expects {layer.width} inputs; it gets {width}")
        width = layer.out
    return tuple(layers)


def join_dense_tensors(files: SafetensorsFiles, folder: Path, layers: Sequence[Dense]) -> SafetensorsFiles:
    """Return the tensors of a folder and those of its Dense modules under our names. Raises ModelNotFound,
    ModelFileError."""
    for layer in layers:
        own = open_safetensors(folder / layer.folder)
        files = joined(files, own, {f"linear.{part}": f"{layer.name}.{part}" for part in PARTS})
    return files


def dense_json(layer: Dense) -> dict[str, Any]:
    """Return the config.json of a Dense module."""
    class_name = next(name for name, activation in ACTIVATIONS.items() if activation == layer.activation)
    kind = "linear" if class_name == "Identity" else "activation"
    numbers = {"in_features": layer.width, "out_features": layer.out, "bias": layer.bias}
    return {**numbers, "activation_function": f"torch.nn.modules.{kind}.{class_name}"}
