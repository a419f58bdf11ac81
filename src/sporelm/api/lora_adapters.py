"""LoRA adapters of a loaded model, by name: loaded and unloaded while requests run."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sporelm.api.engine_loader import LoadedEngine
from sporelm.api.user_paths import parse_path
from sporelm.backends.protocol import SlotWriter
from sporelm.checkpoints.lora import make_target_model, read_adapter
from sporelm.engine.encoder_engine import EncoderEngine
from sporelm.engine.lora_runtime import LoraMatrices, LoraRuntime, LoraWeights
from sporelm.errors import RequestError, safe_repr
from sporelm.models import build

MAX_ADAPTERS = 64  # loaded at the same time
MAX_SCALE = 1e4
MAX_NAME_CHARS = 200

RunBetweenSteps = Callable[[Callable[[], None]], None]  # runs a call between two engine steps, and waits for it


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter to load: a PEFT folder or a .gguf file, its name (None: the file's name) and its scale."""

    path: str | Path
    name: str | None = None
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "LoraAdapter":
        """Parse [NAME=]PATH[@SCALE]. A text that is an existing path, also after NAME=, is not split further.

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
            reason = f"the scale after @ is not a number (got {scale!r:.60})"
            raise RequestError(f"adapter {text!r:.200}: {reason}") from None

    @property
    def resolved_path(self) -> Path:
        """The path with "~" expanded. Raises RequestError if it is not a valid path."""
        return parse_path("the path of an adapter", self.path)

    @property
    def resolved_name(self) -> str:
        """The name, by default the file's. Raises RequestError for an invalid name or scale."""
        name = self.name if self.name is not None else self.resolved_path.resolve().stem
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise RequestError(
                f"name is {safe_repr(name)}: an adapter's must be a line of 1 to {MAX_NAME_CHARS} characters"
            )
        is_number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not is_number or not isfinite(self.scale) or abs(self.scale) > MAX_SCALE:
            raise RequestError(f"scale is {safe_repr(self.scale)}: it must be from -{MAX_SCALE:g} to {MAX_SCALE:g}")
        return name


def _exists(text: str) -> bool:
    """Return whether a file or folder exists at this path; False for a text that is not a valid path."""
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no such home folder
        return False


class EngineOwner(Protocol):
    """An object that has a loaded engine, such as `LLM`; its property raises RequestError once it is closed."""

    @property
    def loaded_engine(self) -> LoadedEngine: ...


class _LoadedAdapter(NamedTuple):
    adapter_id: int  # used in requests and steps; never reused
    identity: str
    matrices: LoraWeights


def parse_adapters(values: Sequence[str | Path | LoraAdapter]) -> list[LoraAdapter]:
    """Return adapters; each may be given as a path only. Raises RequestError for anything else."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(f"adapters is {safe_repr(values)}: it must be a list of paths, or of LoraAdapters")
    return [parse_adapter(value) for value in values]


def parse_adapter(value: str | Path | LoraAdapter) -> LoraAdapter:
    """Return an adapter that may be given as a path only. Raises RequestError for anything else."""
    if not isinstance(value, str | Path | LoraAdapter):
        raise RequestError(f"an adapter is {safe_repr(value)}: it must be a path or a LoraAdapter")
    return value if isinstance(value, LoraAdapter) else LoraAdapter(value)


def run_now(call: Callable[[], None]) -> None:
    """Run a call where no other thread steps the engine."""
    call()


class AdapterRegistry:
    """The LoRA adapters of one model. Threads may share it."""

    def __init__(self, owner: EngineOwner) -> None:
        self._owner = owner
        self.default: str | None = None  # adapter of requests that name none; such a request can select none with ""
        self._adapters: dict[str, _LoadedAdapter] = {}
        self._last_id = 0
        self._changing = threading.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._adapters)

    def adapter_id(self, name: str | None) -> int:
        """Return the engine's id of an adapter. None is the default adapter; "" is none, with the id 0.

        Raises RequestError, which lists the loaded adapters, for an unknown name.
        """
        name = self.default if name is None else name
        if name is None or (isinstance(name, str) and not name):
            return 0
        adapter = self._adapters.get(name) if isinstance(name, str) else None
        if adapter is None:
            known = f"loaded are {', '.join(self._adapters)}" if self._adapters else "none is loaded"
            raise RequestError(f"no adapter is called {safe_repr(name)}: {known}")
        return adapter.adapter_id

    def load(self, sources: Sequence[LoraAdapter], run_between_steps: RunBetweenSteps = run_now) -> list[str]:
        """Load adapters and use them from the next step on, while requests run. Returns their names.

        Raises RequestError for a name that is in use or for more than MAX_ADAPTERS; ModelNotFound, ModelFileError,
        UnsupportedModel, MemoryShortage for the files. After an error nothing has changed.
        """
        if not sources:
            return []
        loaded_engine = self._owner.loaded_engine
        if isinstance(loaded_engine.engine, EncoderEngine):
            raise RequestError(f"{loaded_engine.config.name} is an encoder: adapters are for models that generate")
        with self._changing:
            adapters = dict(self._adapters)
            last_id = self._last_id
            for source in sources:
                name = source.resolved_name
                if name in adapters:
                    raise RequestError(f"an adapter called {name!r} is loaded: unload it first, or give another name")
                if len(adapters) >= MAX_ADAPTERS:
                    raise RequestError(f"{len(adapters)} adapters are loaded, which is the maximum: unload one first")
                last_id += 1
                adapters[name] = _load_adapter(source, last_id, loaded_engine)
            self._replace(adapters, run_between_steps)
            self._last_id = last_id
            return [source.resolved_name for source in sources]

    def unload(self, name: str, run_between_steps: RunBetweenSteps = run_now) -> None:
        """Unload an adapter. Raises RequestError for an unknown name, or while requests use the adapter."""
        with self._changing:
            adapter_id = self.adapter_id(name)
            if self._owner.loaded_engine.decoder_engine.uses_adapter(adapter_id):
                raise RequestError(f"requests still use the adapter {name!r}: wait for them, or cancel them first")
            self._replace({other: each for other, each in self._adapters.items() if other != name}, run_between_steps)

    def _replace(self, adapters: dict[str, _LoadedAdapter], run_between_steps: RunBetweenSteps) -> None:
        """Replace the set of loaded adapters; after an error nothing has changed."""
        adapted: LoraRuntime | None = None
        if adapters:
            matrices = {adapter.adapter_id: adapter.matrices for adapter in adapters.values()}
            adapted = self._owner.loaded_engine.decoder_worker.build_lora_runtime(matrices)
        identities = {adapter.adapter_id: adapter.identity for adapter in adapters.values()}
        names = {adapter.adapter_id: name for name, adapter in adapters.items()}
        try:
            run_between_steps(lambda: self._owner.loaded_engine.decoder_engine.use_adapters(identities, adapted, names))
        except BaseException:
            if adapted is not None:
                self._owner.loaded_engine.decoder_worker.discard_lora_runtime(adapted)
            raise
        self._adapters = adapters


def _load_adapter(source: LoraAdapter, adapter_id: int, loaded_engine: LoadedEngine) -> _LoadedAdapter:
    """Read an adapter. Its matrices are put on the device here, unless they are copied to slots of a table later."""
    model = build(loaded_engine.config)
    base = make_target_model(model.params(), loaded_engine.config)
    adapter = read_adapter(source.resolved_path, base, float(source.scale))
    # Weights that the files store in one tensor share their A matrix, which is put on the device once.
    arrays = {id(array): array for part in adapter.parts.values() for array in part}
    tensors: Mapping[int, Any] = arrays
    if not isinstance(loaded_engine.backend, SlotWriter):
        tensors = {key: loaded_engine.backend.tensor(array) for key, array in arrays.items()}
    matrices = {name: LoraMatrices(*(tensors[id(array)] for array in part)) for name, part in adapter.parts.items()}
    return _LoadedAdapter(adapter_id, adapter.identity, matrices)
