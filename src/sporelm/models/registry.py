"""Architectures by name. The file of a family is imported when one of its names is asked for, and no other."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import TypeVar

from sporelm.checkpoints.family import Family
from sporelm.checkpoints.supported_models import MODELS
from sporelm.errors import UnsupportedModel
from sporelm.models.architecture_registry import architecture_named
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.encoder import Encoder

AnyModel = Decoder | Encoder
_FOUND: dict[str, type[AnyModel]] = {}
Kind = TypeVar("Kind", bound=type[Decoder])
_FILES = {name: each.module for each in MODELS for name in each.names}


def architecture(family: Family) -> Callable[[Kind], Kind]:
    """Register a model under its family's names in GGUF metadata and in Hugging Face configurations."""

    def register(model: Kind) -> Kind:
        for name in family.called:
            if name in _FOUND:
                first, second = _FOUND[name].__name__, model.__name__
                raise UnsupportedModel(f"architecture {name} is claimed by {first} and {second}; give it to one")
        model.family = family
        _FOUND.update(dict.fromkeys(family.called, model))
        return model

    return register


def known_architectures() -> list[str]:
    """Every architecture's name, sorted."""
    return sorted({*_FILES, *_FOUND})


def model_of(name: str, where: str = "") -> type[AnyModel]:
    """The model of an architecture, which the file `where` names. Raises UnsupportedModel with the nearest known name
    for an unknown one."""
    if name not in _FOUND and name in _FILES:
        import_module(f"sporelm.models.families.{_FILES[name]}")
    if name in _FOUND:
        return _FOUND[name]
    shown = name[:80]
    near = get_close_matches(shown, known_architectures(), n=1)
    hint = f"; nearest known: {near[0]}" if near else ""
    place = f"{where}: " if where else ""
    raise UnsupportedModel(
        f"{place}architecture {shown!r} is not supported{hint}; 'spore doctor --models' lists the {len(MODELS)}"
        " families that are"
    )


def model_class(config: ModelConfig) -> type[AnyModel]:
    """Return the model class of a configuration. Raises UnsupportedModel for an unknown architecture."""
    return architecture_named(config.model) if config.model else model_of(config.architecture)


def build(config: ModelConfig) -> AnyModel:
    """Return the model of a configuration. Raises UnsupportedModel for an unknown architecture."""
    return model_class(config)(config)
