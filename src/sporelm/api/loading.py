"""Opens a model: checks what it needs against what there is, then loads its weights and its tokenizer."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

from sporelm import settings
from sporelm.api.machine import choose_threads
from sporelm.backends.backend import Backend, Progress
from sporelm.backends.registry import open_backend
from sporelm.engine import Engine, Limits, LoadedModel, Worker
from sporelm.engine.capacity import bytes_per_page, choose, step_bytes
from sporelm.engine.request import whole_number
from sporelm.engine.speculative import NgramDrafter, Speculation
from sporelm.errors import BackendError, RequestError
from sporelm.models import build
from sporelm.quant import F32 as F32_FORMAT
from sporelm.quant import format_of
from sporelm.tensor.dtype import F16, F32, DType
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.weights.config import ModelConfig
from sporelm.weights.identity import identity_of
from sporelm.weights.load import ModelSource, load_parameters, match_names, open_model
from sporelm.weights.names import Param
from sporelm.weights.resident import available_on, give_back_freed
from sporelm.weights.store import resolve

KV_TYPES: dict[str, DType] = {"f16": F16, "f32": F32}
HOST_BACKENDS = ("cpu", "reference")  # they have one device
MOST_BATCH = 1024
SPECULATIONS = ("ngram",)


@dataclass(frozen=True)
class Options:
    """What `LLM` was asked for."""

    model: str | Path | None
    backend: str | None
    device: str
    threads: int | None
    max_context: int | None
    kv: str | None
    eager: bool
    max_batch: int
    dequantize: bool
    token_budget: int | None
    speculate: str | None = None

    def check(self) -> None:
        """Raise RequestError for a value that cannot be."""
        if self.kv is not None and self.kv not in KV_TYPES:
            raise RequestError(f"kv is {self.kv!r:.60}: it must be one of {', '.join(KV_TYPES)}")
        if self.speculate is not None and self.speculate not in SPECULATIONS:
            known = ", ".join(SPECULATIONS)
            raise RequestError(f"speculate is {self.speculate!r:.60}: it must be one of {known}, or None")
        if not 1 <= whole_number("max_batch", self.max_batch) <= MOST_BATCH:
            raise RequestError(f"max_batch is {self.max_batch}: it must be between 1 and {MOST_BATCH}")
        for name, value in (("--max-context", self.max_context), ("token_budget", self.token_budget)):
            if value is not None and whole_number(name, value) < 1:
                raise RequestError(f"{name} is {value}: it must be at least 1")


@dataclass(frozen=True)
class Opened:
    """A model that is ready to run; `notes` say what of it is not as its files have it."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    backend: Backend
    worker: Worker
    engine: Engine
    threads: int
    kv: str
    model_bytes: int
    load_s: float
    notes: tuple[str, ...]

    @cached_property
    def identity(self) -> str:
        """What the model is known by. The files are opened again: few who load a model let conversations sleep."""
        source = open_model(self.path)
        try:
            return identity_of(source)
        finally:
            source.close()


def itself(backend: Backend) -> Backend:
    return backend


def open_engine(options: Options, progress: Progress | None, around: Callable[[Backend], Backend] = itself) -> Opened:
    """Open everything that the options name, on the back-end that `around` makes of theirs.

    Raises SporeError with one line.
    """
    options.check()
    path = resolve(options.model, progress)
    threads = choose_threads(options.threads)
    began = perf_counter()
    source = open_model(path)
    try:
        backend = around(open_device(options.backend or settings.BACKEND.value, options.device, threads))
        try:
            return _load(options, source, backend, threads, began, progress)
        except BaseException:
            backend.close()
            raise
    finally:
        source.close()


def open_device(name: str, device: str, threads: int) -> Backend:
    """The back-end on that device. Raises BackendError."""
    if name not in HOST_BACKENDS:
        return open_backend(name, threads=threads, device=device)
    if device != "cpu":
        raise BackendError(f"back-end {name!r} has no device {device!r}: it has 'cpu'; see 'spore doctor' for others")
    return open_backend(name, threads=threads)


def _load(
    options: Options, source: ModelSource, backend: Backend, threads: int, began: float, progress: Progress | None
) -> Opened:
    model = build(source.config)
    params = model.params()
    kv = options.kv or ("f32" if options.dequantize or source.config.dtype == "F32" else "f16")
    nbytes = packed_bytes(source, params, backend, dequantize=options.dequantize)
    limits = _limits(options, model.memory(), source.config, backend, KV_TYPES[kv], nbytes)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
        coming = pool.submit(load_tokenizer, source.path)
        weights = load_parameters(source, params, backend, progress, dequantize=options.dequantize, threads=threads)
        tokenizer = coming.result()
    tables = {name: backend.tensor(table) for name, table in model.tables(limits.max_context).items()}
    load_s = perf_counter() - began
    loaded = LoadedModel(model, weights | tables)
    worker = Worker(loaded, backend, limits=limits, kv=KV_TYPES[kv], eager=options.eager)
    try:
        worker.prepare(progress)
    except BaseException:
        worker.close()
        raise
    give_back_freed()
    engine = Engine(worker, limits, Speculation(NgramDrafter()) if options.speculate else None)
    return Opened(
        source.path,
        source.config,
        tokenizer,
        backend,
        worker,
        engine,
        threads,
        kv,
        nbytes,
        load_s,
        source.notes,
    )


def _limits(
    options: Options, memory: Sequence[Any], config: ModelConfig, backend: Backend, kv: DType, weight_bytes: int
) -> Limits:
    """What the engine may hold, given what the weights will leave of the memory."""
    available = available_on(backend)
    # Weights that do not fit are refused when they are loaded, in words of their own.
    left = None if available is None or available < weight_bytes else available - weight_bytes
    most = max(backend.regimes.values())
    budget = min(most, options.token_budget or most)
    if left is not None:
        left = max(0, left - step_bytes(config, budget))
    page_bytes = bytes_per_page(memory, backend, kv)
    context, pages = choose(options.max_context, config.context_length, options.max_batch, page_bytes, left)
    return Limits(
        max_context=context,
        model_context=config.context_length,
        vocab=config.vocab,
        token_budget=budget,
        max_batch=min(options.max_batch, most),
        num_pages=pages,
    )


def packed_bytes(source: ModelSource, params: Sequence[Param], backend: Backend, *, dequantize: bool) -> int:
    """Bytes of all weights once they are packed: what one decoding step reads of a tied model."""
    names = match_names(source, params)
    total = 0
    for param in params:
        stored = F32_FORMAT if dequantize else format_of(source.files.tensors[names[param.name]].type_name)
        total += backend.packed_bytes(stored, param.shape)
    return total
