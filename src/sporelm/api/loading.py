"""Opens a model: checks what it needs against what there is, then loads its weights and its tokenizer."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from time import perf_counter

from sporelm import settings
from sporelm.api.drafting import check_vocabularies, draft_states, draft_worker
from sporelm.api.encoding import check_options, encoder_engine, encoder_limits, of_this_kind
from sporelm.api.incoming import Incoming
from sporelm.api.machine import choose_threads
from sporelm.api.paths import path_of
from sporelm.backends.backend import Backend, Progress
from sporelm.backends.registry import open_backend
from sporelm.engine import Engine, Limits, Worker
from sporelm.engine.capacity import SHARE, choose, choose_states, interval_of
from sporelm.engine.kv.session_folder import DEFAULT_BYTES, SessionFolder
from sporelm.engine.request import whole_number
from sporelm.engine.sizes import size_in_bytes
from sporelm.engine.speculative import ModelDrafter, NgramDrafter, Speculation
from sporelm.errors import BackendError, RequestError, shown
from sporelm.models import Encoder, open_model
from sporelm.ops.cache import KV_TYPES
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.builtin_templates import find_template, use_template
from sporelm.weights.config import ModelConfig
from sporelm.weights.identity import identity_of
from sporelm.weights.resident import available_on, give_back_freed
from sporelm.weights.store import resolve

HOST_BACKENDS = ("cpu", "reference")  # they have one device
MOST_BATCH = 1024
SPECULATIONS = ("ngram", "draft")


@dataclass(frozen=True)
class Options:
    """What `LLM` was asked for; `num_pages`: of the cache, or as many as the memory holds, to repeat another's run, and
    `num_states` that it had; `any_kind`: what this kind of model has no use for is left out, not refused."""

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
    draft_model: str | Path | None = None
    session_dir: str | Path | None = None
    session_bytes: int = DEFAULT_BYTES
    kv_memory: int | str | None = None
    num_pages: int | None = None
    num_states: int | None = None
    any_kind: bool = False
    chat_template: str | Path | None = None

    def check(self) -> None:
        """Raise RequestError for a value that cannot be."""
        if self.kv is not None and self.kv not in list(KV_TYPES):
            raise RequestError(f"kv is {shown(self.kv)}: it must be one of {', '.join(KV_TYPES)}")
        _ = self.kv_bytes
        for name, given in (("backend", self.backend), ("device", self.device)):
            if given is not None and not isinstance(given, str):
                raise RequestError(f"{name} is {shown(given)}: it must be a name")
        if self.speculate is not None and self.speculate not in SPECULATIONS:
            known = ", ".join(SPECULATIONS)
            raise RequestError(f"speculate is {shown(self.speculate)}: it must be one of {known}, or None")
        if self.draft_model is not None and self.speculate == "ngram":
            raise RequestError(f"speculate is 'ngram', which takes no draft model: leave out {self.draft_model!s:.200}")
        if self.draft_model is None and self.speculate == "draft":
            raise RequestError("speculate is 'draft': name the draft model too, with --draft-model or draft_model")
        if not 1 <= whole_number("max_batch", self.max_batch) <= MOST_BATCH:
            raise RequestError(f"max_batch is {shown(self.max_batch)}: it must be between 1 and {MOST_BATCH}")
        for name, value in (
            ("--max-context", self.max_context),
            ("token_budget", self.token_budget),
            ("num_pages", self.num_pages),
            ("num_states", self.num_states or None),
        ):
            if value is not None and whole_number(name, value) < 1:
                raise RequestError(f"{name} is {shown(value)}: it must be at least 1")
        if whole_number("session_bytes", self.session_bytes) < 1:
            raise RequestError(f"session_bytes is {shown(self.session_bytes)}: it must be at least 1")
        if self.session_dir is None and self.session_bytes != DEFAULT_BYTES:
            raise RequestError("session_bytes is given without session_dir: name the folder too, or leave it out")
        if self.session_dir is not None:
            path_of("session_dir", self.session_dir)
        if self.chat_template is not None:
            if not isinstance(self.chat_template, str | Path):
                raise RequestError(f"chat_template is {shown(self.chat_template)}: it must be a name or a path")
            find_template(str(self.chat_template))
        for name in ("eager", "dequantize", "any_kind"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {shown(getattr(self, name))}: it must be True or False")

    @property
    def kv_bytes(self) -> int | None:
        """Bytes for keys and values; None: as measured. Raises RequestError for what is no size."""
        return None if self.kv_memory is None else size_in_bytes("--kv-memory", self.kv_memory)


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
    model_bytes: int  # of all packed weights
    expert_bytes: int  # of those, the matrices of experts
    load_s: float
    notes: tuple[str, ...]
    draft: Worker | None = None  # of the draft model

    @property
    def compile_s(self) -> float:
        """Seconds spent making programs."""
        return sum(worker.runner.compile_s for worker in (self.worker, self.draft) if worker is not None)

    def close(self) -> None:
        """Free the memory and the threads."""
        self.engine.close()
        self.worker.close()
        if self.draft is not None:
            self.draft.close()
        self.backend.close()

    @cached_property
    def identity(self) -> str:
        """What the model is known by. The files are opened again: few who load a model let conversations sleep."""
        return identity_at(self.path)


def itself(backend: Backend) -> Backend:
    return backend


def identity_at(path: Path) -> str:
    """What the model in these files is known by."""
    with closing(open_model(path)) as source:
        return identity_of(source)


def open_engine(options: Options, progress: Progress | None, around: Callable[[Backend], Backend] = itself) -> Opened:
    """Open everything that the options name, on the back-end that `around` makes of theirs.

    Raises SporeError with one line.
    """
    options.check()
    path = resolve(options.model, progress)
    threads = choose_threads(options.threads)
    began = perf_counter()
    with ExitStack() as files:
        source = files.enter_context(closing(open_model(path)))
        options, draft_source = of_this_kind(options, source), None
        if options.draft_model is not None:
            fetching = perf_counter()
            draft_path = resolve(options.draft_model, progress)
            began += perf_counter() - fetching
            draft_source = files.enter_context(closing(open_model(draft_path)))
        backend = around(open_device(options.backend or settings.BACKEND.value, options.device, threads))
        try:
            check_steps(options, backend)
            model = Incoming(source, backend, options.kv, dequantize=options.dequantize)
            draft = None
            if draft_source is not None:
                draft = Incoming(draft_source, backend, options.kv, dequantize=options.dequantize)
            return _load(options, model, draft, threads, began, progress)
        except BaseException:
            backend.close()
            raise


def open_device(name: str, device: str, threads: int) -> Backend:
    """The back-end on that device. Raises BackendError."""
    if name not in HOST_BACKENDS:
        return open_backend(name, threads=threads, device=device)
    if device != "cpu":
        raise BackendError(f"back-end {name!r} has no device {device!r}: it has 'cpu'; see 'spore doctor' for others")
    return open_backend(name, threads=threads)


def check_steps(options: Options, backend: Backend) -> None:
    """Raise RequestError for more in a step than the back-end's programs take."""
    most = max(backend.regimes.values())
    for name, value in (("token_budget", options.token_budget), ("max_batch", options.max_batch)):
        if value is not None and value > most:
            told = f"a step on {backend.name} has at most {most} tokens"
            raise RequestError(f"{name} is {shown(value)}: {told}; give less, or leave it out")


def _load(
    options: Options, model: Incoming, draft: Incoming | None, threads: int, began: float, progress: Progress | None
) -> Opened:
    if isinstance(model.model, Encoder):
        return _load_encoder(options, model, draft, threads, began, progress)
    backend, source = model.backend, model.source
    limits = _limits(options, model, draft)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool, ExitStack() as undone:
        coming = pool.submit(load_tokenizer, source.path)
        if draft is not None:
            check_vocabularies(coming.result(), load_tokenizer(draft.source.path))
        loaded = model.loaded(limits.max_context, threads, progress)
        tokenizer = coming.result()
        if options.chat_template is not None:
            use_template(tokenizer, str(options.chat_template))
        load_s = perf_counter() - began
        worker = model.worker(loaded, limits, progress, eager=options.eager)
        undone.callback(worker.close)
        speculation, second = Speculation(NgramDrafter()) if options.speculate == "ngram" else None, None
        if draft is not None:
            second = draft_worker(draft, limits, threads, progress, eager=options.eager)
            undone.callback(second.close)
            speculation = Speculation(ModelDrafter(second, second.limits, limits.vocab))
        dormitory = _dormitory(options, source.path, worker)  # last: it has threads and files
        undone.pop_all()
    give_back_freed()
    return Opened(
        source.path,
        source.config,
        tokenizer,
        backend,
        worker,
        Engine(worker, limits, speculation, dormitory),
        threads,
        model.kv,
        model.nbytes,
        model.expert_bytes,
        load_s,
        source.notes,
        second,
    )


def _load_encoder(
    options: Options, model: Incoming, draft: Incoming | None, threads: int, began: float, progress: Progress | None
) -> Opened:
    check_options(options, draft)
    source, limits = model.source, encoder_limits(options, model)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
        coming = pool.submit(load_tokenizer, source.path)
        engine = encoder_engine(options, model, limits, threads, progress)
        try:
            tokenizer = coming.result()
        except BaseException:
            engine.worker.close()
            raise
    load_s = perf_counter() - began - engine.worker.runner.compile_s
    give_back_freed()
    return Opened(
        source.path,
        source.config,
        tokenizer,
        model.backend,
        engine.worker,
        engine,
        threads,
        model.kv,
        model.nbytes,
        model.expert_bytes,
        load_s,
        source.notes,
    )


def _dormitory(options: Options, path: Path, worker: Worker) -> SessionFolder | None:
    """Where conversations sleep that must give way, if they are to."""
    if options.session_dir is None:
        return None
    folder, identity = path_of("session_dir", options.session_dir), cache(partial(identity_at, path))
    return SessionFolder(folder, worker, identity, options.session_bytes)


def _limits(options: Options, model: Incoming, draft: Incoming | None) -> Limits:
    """What the engine may hold, given what the weights will leave of the memory. Each page of the model has one of the
    draft model beside it."""
    backend, config, both = model.backend, model.config, [each for each in (model, draft) if each is not None]
    available, weight_bytes = available_on(backend), sum(each.nbytes for each in both)
    # Weights that do not fit are refused when they are loaded, in words of their own.
    left = None if available is None or available < weight_bytes else available - weight_bytes
    most = max(backend.regimes.values())
    budget = options.token_budget or most
    if left is not None:
        left = max(0, left - model.step_bytes(budget) - (draft.step_bytes(most) if draft is not None else 0))
    page_bytes = sum(each.page_bytes for each in both)
    given = options.kv_bytes
    states, beside = _states(options, model, draft, left)
    if options.num_pages is not None:
        wanted = options.num_pages * page_bytes + beside
        given = wanted if left is None else min(wanted, left)
    asked, most_context = options.max_context, config.context_length
    context, pages = choose(asked, most_context, options.max_batch, page_bytes, left, given, beside)
    return Limits(
        max_context=context,
        model_context=config.context_length,
        vocab=config.vocab,
        token_budget=budget,
        max_batch=options.max_batch,
        num_pages=pages,
        num_states=states,
        state_interval=interval_of(model.state_bytes, model.page_bytes) if states else 0,
    )


def _states(options: Options, model: Incoming, draft: Incoming | None, left: int | None) -> tuple[int, int]:
    """How many recurrent states the model has, and the bytes of these and of the draft model's together."""
    room = options.kv_bytes
    if room is None and left is not None:
        room = left // SHARE
    beside = draft.state_bytes * draft_states(draft, options.max_batch) if draft is not None else 0
    if options.num_states is not None and model.state_bytes:
        states = options.num_states
    else:
        shared = bool(model.page_bytes or (draft is not None and draft.page_bytes))
        left_over = None if room is None else room - beside
        states = choose_states(model.state_bytes, left_over, options.max_batch, shared=shared)
    return states, beside + states * model.state_bytes
