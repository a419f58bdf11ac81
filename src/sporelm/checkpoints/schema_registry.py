"""Finds the schema of a GGUF architecture or of a transformers class. Modules of schemas are imported on demand."""

from difflib import get_close_matches
from importlib import import_module
from typing import TypeVar

from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.supported_models import MODELS
from sporelm.errors import UnsupportedModel
from sporelm.models.architecture_registry import Architecture
from sporelm.models.config import ModelConfig

MAX_SHOWN_LENGTH = 80
_MODULES = {name: each.module for each in MODELS for name in each.names}
MMPROJ_ARCHITECTURE = "clip"
_GGUF: dict[str, type[GgufSchema]] = {}  # by general.architecture
_HF: dict[str, type[HfSchema]] = {}  # by class of transformers
_FIRST_GGUF: dict[str, type[GgufSchema]] = {}  # by module
_FIRST_HF: dict[str, type[HfSchema]] = {}
AnySchema = TypeVar("AnySchema", bound="type[GgufSchema] | type[HfSchema]")


def register(schema: AnySchema) -> AnySchema:
    """Register a schema under its names in files. The first schema of a module is the one that is written."""
    schema.module = schema.__module__.rpartition(".")[2]
    if issubclass(schema, GgufSchema):
        for name in filter(None, (*schema.names, schema.mixture_name)):
            _GGUF[name] = schema
        _FIRST_GGUF.setdefault(schema.module, schema)
    else:
        _HF[schema.__name__] = schema
        _FIRST_HF.setdefault(schema.module, schema)
    return schema


def known_names() -> list[str]:
    """Return every supported GGUF architecture and transformers class, sorted."""
    return sorted({*_MODULES, *_GGUF, *_HF})


def find_gguf_schema(architecture: str, where: str = "") -> GgufSchema:
    """Return the schema of a `general.architecture`.

    where   the file, for messages

    Raises UnsupportedModel with the nearest supported name.
    """
    if architecture == MMPROJ_ARCHITECTURE:
        raise UnsupportedModel(
            f"{where or 'model'}: an mmproj file, which holds only the vision tower of a model. Give the model's own "
            "file, and this one as the option mmproj."
        )
    module = _module_of(architecture, where)
    import_module(f"sporelm.checkpoints.gguf.{module}")
    return _GGUF[architecture]()


def find_hf_schema(class_name: str, where: str = "") -> HfSchema:
    """Return the schema of a class of transformers. Raises UnsupportedModel with the nearest supported name."""
    module = _module_of(class_name, where)
    import_module(f"sporelm.checkpoints.hf.{module}")
    return _HF[class_name]()


def gguf_schema_for(schema: HfSchema) -> GgufSchema:
    """Return the schema of the GGUF files that a folder is converted to."""
    import_module(f"sporelm.checkpoints.gguf.{schema.module}")
    return _FIRST_GGUF[schema.module]()


def hf_schema_for(schema: GgufSchema, config: ModelConfig) -> HfSchema:
    """Return the schema of the folder that a GGUF file is converted to. Raises UnsupportedModel if no class of
    transformers has this configuration."""
    return first_hf_schema(schema).class_for(config)


def first_hf_schema(schema: GgufSchema) -> HfSchema:
    """Return the schema of the first class of transformers for the architecture of GGUF files."""
    import_module(f"sporelm.checkpoints.hf.{schema.module}")
    return _FIRST_HF[schema.module]()


def _module_of(name: str, where: str) -> str:
    known = _GGUF.get(name) or _HF.get(name)
    if known is not None:
        return known.module
    if name in _MODULES:
        return _MODULES[name]
    short_name = name[:MAX_SHOWN_LENGTH]
    near = get_close_matches(short_name, known_names(), n=1)
    hint = f"; nearest known: {near[0]}" if near else ""
    place = f"{where}: " if where else ""
    raise UnsupportedModel(
        f"{place}architecture {short_name!r} is not supported{hint}. 'spore doctor --models' lists the {len(MODELS)}"
        " supported families"
    )


def is_gguf_name(name: str) -> bool:
    """Return whether a name is a `general.architecture`: those are in lower case, classes of transformers are not."""
    return name == name.lower()


def schemas_for(config: ModelConfig) -> tuple[GgufSchema, HfSchema]:
    """Return the schemas of both kinds of files for a configuration from either."""
    if is_gguf_name(config.architecture):
        gguf = find_gguf_schema(config.architecture)
        return gguf, hf_schema_for(gguf, config)
    hf = find_hf_schema(config.architecture)
    return gguf_schema_for(hf), hf


def find_names(schema: GgufSchema | HfSchema) -> tuple[str, ...]:
    """Return every name of a schema's family: `general.architecture`, then the classes of transformers."""
    return next(each.names for each in MODELS if each.module == schema.module)


def find_architecture(name: str) -> type[Architecture]:
    """Return the model class for a `general.architecture` or a class of transformers."""
    return (find_gguf_schema(name) if is_gguf_name(name) else find_hf_schema(name)).architecture
