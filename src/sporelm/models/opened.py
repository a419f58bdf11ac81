"""Opens a model's files: the registry says which family reads their configuration."""

from collections.abc import Container, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.registry import known_architectures, model_of
from sporelm.models.wrapped import text_values, whole_of, wrapped
from sporelm.weights.config import MOST_HEAD_DIM, ModelConfig
from sporelm.weights.config_files import architecture_of_gguf, architecture_of_hf, read_gguf_config, read_hf_config
from sporelm.weights.dense import with_dense
from sporelm.weights.experts import CHOICE_BIAS
from sporelm.weights.family import Family
from sporelm.weights.gguf import GgufFile, open_gguf
from sporelm.weights.json_object import read_object
from sporelm.weights.listed import listed_numbers
from sporelm.weights.load import ModelSource
from sporelm.weights.names import HF, form_in, stored_name
from sporelm.weights.pooling import pooling_of_folder
from sporelm.weights.quantized import QuantizedFolder, with_quantized
from sporelm.weights.recut import recut
from sporelm.weights.rope_fields import FACTOR_TENSORS
from sporelm.weights.safetensors import SafetensorsFiles, open_safetensors


def open_model(path: str | Path) -> ModelSource:
    """Open a .gguf file (or the first of a split model) or a Hugging Face folder.

    Raises ModelNotFound, ModelFileError for damaged files, UnsupportedModel for an architecture or an option that would
    change the result and that we lack.
    """
    place = Path(path)
    return _open_folder(place) if place.is_dir() else _open_file(place)


def _open_folder(place: Path) -> ModelSource:
    values, bare = with_head(read_object(place / "config.json"))
    files = with_quantized(open_safetensors(place), values)
    config = config_from_hf(values, str(place / "config.json"), _main_format(files))
    pooled = pooling_of_folder(place, config.width)
    config = replace(config, pooling=pooled.pooling, dense=pooled.dense)
    if pooled.dense:
        files.close()
        files = with_quantized(with_dense(open_safetensors(place), place, pooled.dense), values)
    family, whole = model_of(config.architecture).family, whole_of(values)
    if family.row_cuts is not None and isinstance(files, SafetensorsFiles):
        files = recut(files, family.row_cuts(config))
    family = (wrapped(family, whole) if whole else family).of_file("hf", files.tensors)
    config = _with_choice_bias(config, family, files.tensors)
    # Where nobody says it, the class ties them, but for a folder that has both; of a whole, the folder tells.
    if (config.tie_embeddings or whole) and not _says_tied(values):
        tied = stored_name("output.weight", "hf", family.table(config)) not in files.tensors
        config = replace(config, tie_embeddings=tied)
    if not family.reads:
        config, family = headless(config, family, files.tensors, bare=bare)
    return ModelSource("hf", place, files, _one_head(config, place), family)


def _with_choice_bias(config: ModelConfig, family: Family, held: Container[str]) -> ModelConfig:
    """The configuration with a bias by which experts are chosen, where its folder has one and config.json no word for
    it: transformers gives A.X K1's routers one, its makers' folders have none."""
    experts = config.experts
    if experts is None or experts.choice_bias or not any(names.ours == CHOICE_BIAS for names in family.names):
        return config
    form = next(form_in(names, HF) for names in family.names if names.ours == CHOICE_BIAS)
    has_one = any(form.name.replace("{}", str(layer)) in held for layer in range(config.layers))
    return replace(config, experts=replace(experts, choice_bias=True)) if has_one else config


def _open_file(place: Path) -> ModelSource:
    gguf = open_gguf(place)
    shapes = {name: info.shape for name, info in gguf.tensors.items()}
    config = config_from_gguf(gguf.metadata, shapes, str(place), _main_format(gguf), _rope_factors(gguf, place))
    family = model_of(config.architecture).family.of_file("gguf", gguf.tensors)
    for name, numbers in listed_numbers(family, gguf.metadata, config.layers, str(place)).items():
        gguf.hold(name, numbers)
    return ModelSource("gguf", place, gguf, _one_head(config, place), family)


def with_head(values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A config.json that names a decoder without its head, as embedding models do ("Qwen3Model"), with the class that
    has one, and whether it did."""
    named = values.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    whole, known = f"{name.removesuffix('Model')}ForCausalLM", known_architectures()
    if not name.endswith("Model") or name in known or whole not in known:
        return values, False
    return {**values, "architectures": [whole]}, True


def headless(config: ModelConfig, family: Family, held: Container[str], *, bare: bool) -> tuple[ModelConfig, Family]:
    """A decoder's configuration and family where its folder may lack the head: its class does (`bare`), or it is an
    embedding model and the tensor is not there. Its tensors may lack "model." in front then."""
    if not bare and not config.pooling:
        return config, family
    family = replace(family, prefix=family.prefix or "model.")
    lacks = not config.tie_embeddings and stored_name("output.weight", "hf", family.table(config)) not in held
    alone = bare or lacks
    biased, tied = config.output_bias and not alone, config.tie_embeddings or alone
    return replace(config, alone=alone, tie_embeddings=tied, output_bias=biased), family


def _one_head(config: ModelConfig, place: Path) -> ModelConfig:
    """A configuration whose output is the embedding, or has a bias, and not both."""
    if config.output_bias and config.tie_embeddings and not config.alone:
        what = "an output layer tied to the embedding cannot have a bias (tie_word_embeddings)"
        raise UnsupportedModel(f"{place}: {what}")
    return config


def _says_tied(values: Mapping[str, Any]) -> bool:
    """Whether a config.json says, of the whole or of its text model, if the output is the embedding."""
    text = values.get("text_config")
    return any("tie_word_embeddings" in part for part in (values, text) if isinstance(part, Mapping))


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    dtype: str = "F32",
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """The configuration in a GGUF file's metadata; see `read_gguf_config`."""
    family = model_of(architecture_of_gguf(metadata, where), where).family.of_file("gguf", shapes)
    return read_gguf_config(family, metadata, shapes, where, dtype, rope_factors)


def config_from_hf(values: Mapping[str, Any], where: str, dtype: str = "F32") -> ModelConfig:
    """The configuration in a config.json, or of the text model in it; see `read_hf_config`."""
    values = text_values(dict(values), where)
    return read_hf_config(model_of(architecture_of_hf(values, where), where).family, values, where, dtype)


def _rope_factors(gguf: GgufFile, place: Path) -> dict[str, tuple[float, ...]]:
    """The values of the tensors that divide rotary frequencies, by their names."""
    found = {}
    for name in FACTOR_TENSORS:
        if (info := gguf.tensors.get(name)) is not None:
            if len(info.shape) != 1 or info.shape[0] > MOST_HEAD_DIM:
                what = f"{name} is {list(info.shape)}"
                raise ModelFileError(f"{place}: {what}; it must have one value for each rotary frequency")
            found[name] = tuple(gguf.tensor(name).dequantize().tolist())
    return found


def _main_format(files: GgufFile | SafetensorsFiles | QuantizedFolder) -> str:
    """The number format of most values in matrices."""
    counts: dict[str, int] = {}
    for info in files.tensors.values():
        if len(info.shape) > 1:
            counts[info.type_name] = counts.get(info.type_name, 0) + prod(info.shape)
    return max(counts, key=lambda name: counts[name], default="F32")
