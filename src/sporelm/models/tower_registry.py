"""Vision towers by name. Only the module of the requested tower is imported."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig

_REGISTERED: dict[str, type[Tower[Any]]] = {}
TowerClass = TypeVar("TowerClass", bound=type[Tower[Any]])


def tower(name: str, config_class: type[TowerConfig] = TowerConfig) -> Callable[[TowerClass], TowerClass]:
    """Register a tower, and the class of its configurations, as `name`, which is also the name of its module."""

    def register(model: TowerClass) -> TowerClass:
        model.name = name
        model.config_class = config_class
        _REGISTERED[name] = model
        return model

    return register


def build_tower(config: TowerConfig) -> Tower[Any]:
    """Return the tower of a configuration."""
    if config.model not in _REGISTERED:
        import_module(f"sporelm.models.towers.{config.model}")
    return _REGISTERED[config.model](config)
