"""Adapters of an open model by name: loaded and unloaded while it answers."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NamedTuple, Protocol

from sporelm.api.loading import Opened
from sporelm.api.paths import path_of
from sporelm.engine.adapted import Adapted, Matrices, OnDevice
from sporelm.engine.reading import EncoderEngine
from sporelm.errors import RequestError, shown
from sporelm.models import build
from sporelm.weights.lora import Base, read_adapter

MOST_ADAPTERS = 64  # loaded together
MOST_SCALE = 1e4
LONGEST_NAME = 200

Between = Callable[[Callable[[], None]], None]  # has something done between two steps, and waits for it


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter to be loaded: a PEFT folder or a .gguf file, what to call it (None: as the file), and what to
    multiply it by."""

    path: str | Path
    name: str | None = None
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "LoraAdapter":
        """Parse [NAME=]PATH[@SCALE]. A text, or the rest after NAME=, that is an existing path is not split.

        Raises RequestError if the scale is not a number.
        """
        name: str | None = None
        if not _exists(text) and "=" in text:
            name, _, text = text.partition("=")
        path, at, scale = text.rpartition("@")
        if _exists(text) or not at:
            return cls(text, name)
        try:
            return cls(path, name, float(scale))
        except ValueError:
            what = f"the scale after @ is not a number (got {scale!r:.60})"
            raise RequestError(f"adapter {text!r:.200}: {what}") from None

    @property
    def place(self) -> Path:
        """Where it lies. Raises RequestError for what cannot be a path."""
        return path_of("the path of an adapter", self.path)

    @property
    def title(self) -> str:
        """What it is called. Raises RequestError for a name or a scale that cannot be."""
        name = self.name if self.name is not None else self.place.resolve().stem
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= LONGEST_NAME:
            raise RequestError(f"name is {shown(name)}: an adapter's must be a line of 1 to {LONGEST_NAME} characters")
        number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not number or not isfinite(self.scale) or abs(self.scale) > MOST_SCALE:
            raise RequestError(f"scale is {shown(self.scale)}: it must be from -{MOST_SCALE:g} to {MOST_SCALE:g}")
        return name


def _exists(text: str) -> bool:
    """Return whether a file or folder exists at this path; False for a text that cannot be a path."""
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no such home folder
        return False


class Holder(Protocol):
    """Who has the model open."""

    @property
    def opened(self) -> Opened: ...


class _Loaded(NamedTuple):
    number: int  # as requests and steps call it; none is given twice
    identity: str
    matrices: OnDevice


def as_adapters(given: Sequence[str | Path | LoraAdapter]) -> list[LoraAdapter]:
    """Adapters of which each may be given as its path alone. Raises RequestError for anything else."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise RequestError(f"adapters is {shown(given)}: it must be a list of paths, or of LoraAdapters")
    return [as_adapter(each) for each in given]


def as_adapter(given: str | Path | LoraAdapter) -> LoraAdapter:
    """An adapter that may be given as its path alone. Raises RequestError for anything else."""
    if not isinstance(given, str | Path | LoraAdapter):
        raise RequestError(f"an adapter is given as {shown(given)}: it must be a path or a LoraAdapter")
    return given if isinstance(given, LoraAdapter) else LoraAdapter(given)


def at_once(work: Callable[[], None]) -> None:
    """Between two steps, where nobody else steps: the engine has its own turns."""
    work()


class Adapters:
    """Those of one model. Threads may share it."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.default: str | None = None  # the adapter of requests that name none; "" selects no adapter
        self._loaded: dict[str, _Loaded] = {}
        self._count = 0
        self._changing = threading.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._loaded)

    def number(self, name: str | None) -> int:
        """Return the engine's number of an adapter; None is the default adapter. 0 is no adapter: "", or None without a
        default.

        Raises RequestError, which lists the loaded adapters, for an unknown name.
        """
        name = self.default if name is None else name
        if name is None or (isinstance(name, str) and not name):
            return 0
        found = self._loaded.get(name) if isinstance(name, str) else None
        if found is None:
            known = f"loaded are {', '.join(self._loaded)}" if self._loaded else "none is loaded"
            raise RequestError(f"no adapter is called {shown(name)}: {known}")
        return found.number

    def load(self, sources: Sequence[LoraAdapter], between: Between = at_once) -> list[str]:
        """Read adapters and use them from the next step on; their names. What runs goes on meanwhile.

        Raises RequestError for a name that is taken or for more than MOST_ADAPTERS; ModelNotFound, ModelFileError,
        UnsupportedModel, MemoryShortage for the files. Then nothing is changed.
        """
        if not sources:
            return []
        opened = self.holder.opened
        if isinstance(opened.engine, EncoderEngine):
            raise RequestError(f"{opened.config.name} is an encoder: adapters are for models that generate")
        with self._changing:
            loaded, count = dict(self._loaded), self._count
            for source in sources:
                name = source.title
                if name in loaded:
                    raise RequestError(f"an adapter called {name!r} is loaded: unload it first, or give another name")
                if len(loaded) >= MOST_ADAPTERS:
                    raise RequestError(f"{len(loaded)} adapters are loaded, which is the most: unload one first")
                count += 1
                loaded[name] = _read(source, count, opened)
            self._change(loaded, between)
            self._count = count
            return [source.title for source in sources]

    def unload(self, name: str, between: Between = at_once) -> None:
        """Forget an adapter. Raises RequestError if there is none of that name, or while requests use it."""
        with self._changing:
            number = self.number(name)
            if self.holder.opened.engine.uses_adapter(number):
                raise RequestError(f"requests still use the adapter {name!r}: wait for them, or cancel them first")
            self._change({other: each for other, each in self._loaded.items() if other != name}, between)

    def _change(self, loaded: dict[str, _Loaded], between: Between) -> None:
        """Make these the adapters, or, if that fails, change nothing."""
        adapted: Adapted | None = None
        if loaded:
            adapted = self.holder.opened.worker.adapt({each.number: each.matrices for each in loaded.values()})
        known = {each.number: each.identity for each in loaded.values()}
        titles = {each.number: name for name, each in loaded.items()}
        try:
            between(lambda: self.holder.opened.engine.use_adapters(known, adapted, titles))
        except BaseException:
            if adapted is not None:
                adapted.close()
            raise
        self._loaded = loaded


def _read(source: LoraAdapter, number: int, opened: Opened) -> _Loaded:
    """An adapter on the device."""
    model = build(opened.config)
    base = Base(model.params(), model.family, opened.config.head_dim, opened.config)
    adapter = read_adapter(source.place, base, float(source.scale))
    # Weights that files hold in one tensor share their A.
    arrays = {id(array): array for part in adapter.parts.values() for array in part}
    tensors = {key: opened.backend.tensor(array) for key, array in arrays.items()}
    matrices = {name: Matrices(*(tensors[id(array)] for array in part)) for name, part in adapter.parts.items()}
    return _Loaded(number, adapter.identity, matrices)
