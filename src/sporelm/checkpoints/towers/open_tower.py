"""Opens the vision tower of a model: a part of its Hugging Face folder, or an mmproj GGUF file."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.quantized import with_quantized
from sporelm.checkpoints.towers.supported_towers import IMAGE_ENCODERS, TOWERS, SupportedTower
from sporelm.checkpoints.towers.tower_schema import CLIP, TowerGgufSchema, TowerHfSchema
from sporelm.errors import ModelNotFound, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.files.json_object import read_object
from sporelm.files.safetensors import open_safetensors

PROJECTOR_KEYS = ("clip.projector_type", "clip.vision.projector_type")
FIRST_KEY, FIRST_PROJECTOR = "clip.has_llava_projector", "mlp"
Schema = TypeVar("Schema", bound="type[TowerHfSchema] | type[TowerGgufSchema]")
_HF: dict[str, type[TowerHfSchema]] = {}  # by module
_GGUF: dict[str, type[TowerGgufSchema]] = {}


def register_tower(schema: Schema) -> Schema:
    """Register the schema of a module."""
    schema.module = schema.__module__.rpartition(".")[2]
    if issubclass(schema, TowerHfSchema):
        _HF[schema.module] = schema
    else:
        _GGUF[schema.module] = schema
    return schema


def find_tower(folder: Path) -> SupportedTower | None:
    """Return the family of a Hugging Face folder of a vision model; None for other models.

    None also if the folder's vision_config is of an unsupported type, or only the text model's tensors are present.
    Raises ModelNotFound, ModelFileError.
    """
    found = _find_class(folder, TOWERS)
    if found is None or not _has_supported_type(folder, found):
        return None
    try:
        files = open_safetensors(folder)
    except ModelNotFound:  # config.json alone: trust the class
        return found
    with closing(files):
        prefixes = tower_hf_schema(found.module).prefixes
        return found if any(name.startswith(prefixes) for name in files.tensors) else None


def _has_supported_type(folder: Path, family: SupportedTower) -> bool:
    """Return whether a folder's `vision_config` has a `model_type` that the family supports."""
    vision = read_object(folder / "config.json").get("vision_config")
    kind = vision.get("model_type") if isinstance(vision, Mapping) else None
    return not family.vision_types or kind is None or kind in family.vision_types


def find_image_encoder(folder: Path) -> SupportedTower | None:
    """Return the family of a Hugging Face folder of an image encoder; None for other models."""
    return _find_class(folder, IMAGE_ENCODERS)


def _find_class(folder: Path, families: Sequence[SupportedTower]) -> SupportedTower | None:
    classes = read_object(folder / "config.json").get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    return next((tower for tower in families if name in tower.classes), None)


def tower_hf_schema(module: str) -> TowerHfSchema:
    """Return the schema of a family's folders."""
    import_module(f"sporelm.checkpoints.towers.hf.{module}")
    return _HF[module]()


def tower_gguf_schema(module: str) -> TowerGgufSchema:
    """Return the schema of a family's mmproj files. Raises UnsupportedModel for an image encoder, which has none."""
    encoder = next((each for each in IMAGE_ENCODERS if each.module == module), None)
    if encoder is not None:
        raise UnsupportedModel(
            f"{encoder.title}: an image encoder has no mmproj file, which holds the vision tower of a language model. "
            "Use its folder."
        )
    import_module(f"sporelm.checkpoints.towers.gguf.{module}")
    return _GGUF[module]()


def open_tower(path: Path) -> ModelSource:
    """Open the tower in an mmproj file, or in a folder of a multimodal model.

    Raises ModelNotFound, ModelFileError, and UnsupportedModel for a model without a supported vision
    tower.
    """
    return _open_folder(path) if path.is_dir() else _open_file(path)


def _open_folder(folder: Path) -> ModelSource:
    where = str(folder / "config.json")
    values = read_object(folder / "config.json")
    tower = _find_class(folder, (*TOWERS, *IMAGE_ENCODERS))
    if tower is None:
        name = format_value(values.get("architectures"))
        known = ", ".join(each.title for each in (*TOWERS, *IMAGE_ENCODERS))
        raise UnsupportedModel(f"{where}: its vision tower is not supported (got {name}; allowed {known})")
    files = with_quantized(open_safetensors(folder), values)
    schema = tower_hf_schema(tower.module)
    config = schema.config_from_json(ConfigValues(values, where))
    return ModelSource("hf", folder, files, config, _as_model_schema(schema.for_file(files.tensors)))


def has_key(metadata: Mapping[str, Any], key: str) -> bool:
    """Return whether metadata has a key; true for ""."""
    return not key or key in metadata


def open_paired_text(folder: Path) -> ModelSource | None:
    """Open the text encoder beside a folder's image encoder; None if there is none. Raises as `open_tower`."""
    values = read_object(folder / "config.json")
    tower = find_image_encoder(folder)
    if tower is None or not isinstance(values.get("text_config"), Mapping):
        return None
    files = with_quantized(open_safetensors(folder), values)
    schema = tower_hf_schema("paired_text")
    config = schema.config_from_json(ConfigValues(values, str(folder / "config.json")))
    return ModelSource("hf", folder, files, config, _as_model_schema(schema.for_file(files.tensors)))


def _as_model_schema(schema: TowerHfSchema | TowerGgufSchema) -> Any:
    """Return the schema for a `ModelSource`, whose users call only the tensor methods of a schema."""
    return cast(Any, schema)


def find_projector(metadata: Mapping[str, Any]) -> Any:
    """Return the kind of projector that metadata names; LLaVA's files of 2023 do not have the key."""
    default = FIRST_PROJECTOR if metadata.get(FIRST_KEY) is True else None
    return next((metadata[key] for key in PROJECTOR_KEYS if key in metadata), default)


def _open_file(path: Path) -> ModelSource:
    gguf = open_gguf(path)
    kind = gguf.metadata.get("general.architecture")
    if kind != CLIP:
        raise UnsupportedModel(
            f"{path}: not an mmproj file (general.architecture is {format_value(kind)}; allowed 'clip'). Give the file"
            " with the vision tower, which usually has mmproj in its name"
        )
    projector = find_projector(gguf.metadata)
    tower = next(
        (
            each
            for each in TOWERS
            if isinstance(projector, str) and projector in each.projectors and has_key(gguf.metadata, each.metadata_key)
        ),
        None,
    )
    if tower is None:
        known = ", ".join(name for each in TOWERS for name in each.projectors)
        raise UnsupportedModel(
            f"{path}: clip.projector_type is not supported (got {format_value(projector)}; allowed {known})"
        )
    shapes = {name: info.shape for name, info in gguf.tensors.items()}
    counts: dict[str, int] = {}
    for info in gguf.tensors.values():
        counts[info.type_name] = counts.get(info.type_name, 0) + prod(info.shape)
    dtype = max(counts, key=lambda name: counts[name], default="F32")
    schema = tower_gguf_schema(tower.module)
    config = schema.config_from_metadata(GgufModel(gguf.metadata, shapes, str(path), {}, dtype))
    return ModelSource("gguf", path, gguf, config, _as_model_schema(schema.for_file(gguf.tensors)))
