"""Architectures by name. A file in this folder that uses `@architecture` is found by being there."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from sporelm.errors import UnsupportedModel
from sporelm.models.decoder import Decoder
from sporelm.weights.config import ModelConfig

_FOUND: dict[str, type[Decoder]] = {}


def architecture(*names: str) -> Callable[[type[Decoder]], type[Decoder]]:
    """Register a model under its names in GGUF metadata and in Hugging Face configurations."""

    def register(model: type[Decoder]) -> type[Decoder]:
        for name in names:
            if name in _FOUND:
                first, second = _FOUND[name].__name__, model.__name__
                raise UnsupportedModel(f"architecture {name} is claimed by {first} and {second}; give it to one")
            _FOUND[name] = model
        return model

    return register


def known_architectures() -> dict[str, type[Decoder]]:
    """Every architecture by name."""
    import sporelm.models as folder

    for module in iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return dict(_FOUND)


def build(config: ModelConfig) -> Decoder:
    """The model of a configuration. Raises UnsupportedModel with the nearest known name for an unknown architecture."""
    known = known_architectures()
    if config.architecture in known:
        return known[config.architecture](config)
    shown = config.architecture[:80]
    near = get_close_matches(shown, known, n=1)
    hint = f"; nearest known: {near[0]}" if near else ""
    raise UnsupportedModel(f"architecture {shown!r} is not supported{hint}; supported: {', '.join(sorted(known))}")
