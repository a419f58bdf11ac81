"""Architectures by name. Only the module of the requested architecture is imported."""

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.encoder import Encoder

Architecture = Decoder | Encoder
_REGISTERED: dict[str, type[Architecture]] = {}
ModelClass = TypeVar("ModelClass", type[Decoder], type[Encoder])


def architecture(name: str, config_class: type[ModelConfig] = ModelConfig) -> Callable[[ModelClass], ModelClass]:
    """Register a model class, and the class of its configurations, as the architecture `name`, which is also the name
    of its module."""

    def register(model: ModelClass) -> ModelClass:
        model.name = name
        model.config_class = config_class
        _REGISTERED[name] = model
        return model

    return register


def architecture_named(name: str) -> type[Architecture]:
    """Return the model class of an architecture. Raises ModuleNotFoundError for a name that has no module."""
    if name not in _REGISTERED:
        import_module(f"sporelm.models.architectures.{name}")
    return _REGISTERED[name]


def model_class(config: ModelConfig) -> type[Architecture]:
    """Return the model class of a configuration."""
    return architecture_named(config.model)


def build(config: ModelConfig) -> Architecture:
    """Return the model of a configuration."""
    return model_class(config)(config)
