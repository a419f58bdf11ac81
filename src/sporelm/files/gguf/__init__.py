"""GGUF files: a reader that trusts nothing it reads, and a writer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sporelm.files.gguf.metadata_values import StringArray
    from sporelm.files.gguf.reader import GgufFile, GgufTensorInfo, open_gguf
    from sporelm.files.gguf.writer import GgufWriter

__all__ = ["GgufFile", "GgufTensorInfo", "GgufWriter", "StringArray", "open_gguf"]

_HOMES = {
    "GgufFile": "reader",
    "GgufTensorInfo": "reader",
    "GgufWriter": "writer",
    "StringArray": "metadata_values",
    "open_gguf": "reader",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
