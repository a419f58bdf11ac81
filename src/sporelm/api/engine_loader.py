"""Load an engine: check its memory requirements, then load weights and tokenizer and compile the programs."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import prod
from pathlib import Path
from time import perf_counter

from sporelm import settings
from sporelm.api.backend_choice import AUTO, HOST, BackendChoice, TokenCost, choose_backend
from sporelm.api.cpu_count import choose_threads
from sporelm.api.device_split import DeviceSplit
from sporelm.api.draft_model import check_vocabularies, load_draft_worker
from sporelm.api.encoder_loading import check_options, drop_unused_options, encoder_limits, load_encoder_engine
from sporelm.api.engine_limits import choose_limits, choose_split_limits
from sporelm.api.image_inputs import ImageReader
from sporelm.api.model_loader import ModelLoader
from sporelm.api.open_device import HOST_DTYPES, open_device
from sporelm.api.parallel_options import ONE_RANK, ParallelOptions
from sporelm.api.rank_launch import check_supported, note_waiting_threads, rank_threads, start_group
from sporelm.api.rank_limits import choose_rank_limits
from sporelm.api.rank_opening import GroupSpec, RankOptions
from sporelm.api.split_loading import (
    check_device_option,
    measure_host_rate,
    preview_split,
    shorten_steps,
    split_if_needed,
)
from sporelm.api.tower_loading import connect_tower, load_tower
from sporelm.api.user_paths import parse_path
from sporelm.backends.memory_residency import trim_heap
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints import open_model
from sporelm.checkpoints.identity import ModelIdentity, compute_identity
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.towers.open_tower import find_image_encoder
from sporelm.engine import Engine, EngineConfig, Worker
from sporelm.engine.capacity import DEFAULT_CONTEXT
from sporelm.engine.encoder_engine import EncoderEngine, EncoderWorker
from sporelm.engine.kv.offload import DEFAULT_MAX_BYTES, OffloadStore
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.ranks.worker_group import AnyWorker, WorkerGroup
from sporelm.engine.request import parse_int
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.speculative import ModelDrafter, NgramDrafter, Speculation
from sporelm.errors import RequestError, safe_repr
from sporelm.files.store import resolve
from sporelm.models import Encoder
from sporelm.models.config import ModelConfig
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.ops.number_types import DTYPE_OPTIONS
from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.chat_templates.builtin_templates import find_template, use_template
from sporelm.units import size_in_bytes
from sporelm.vision.processor_registry import note_missing_settings

MAX_BATCH = 1024
STEP_TOKENS = 512  # tokens of a step that must fit beside the weights
SPECULATION_METHODS = ("ngram", "draft")
StartRanks = Callable[[EngineConfig], WorkerGroup]
Announce = Callable[[str], None]  # a line for the user, before the weights are loaded


@dataclass(frozen=True)
class EngineOptions:
    """The options of `LLM`, and those of a replay.

    num_pages   pages of the KV cache, as in the recorded run; fewer if the memory holds no more
    num_states  recurrent states, as in the recorded run
    dtype       the data type of activations, an option of the back-end
    strict      refuse to run ops by the reference where the back-end has no kernel
    batch_invariant  make results independent of the batch: every product adds in a fixed order
    device_memory  bytes of the device for weights, caches and a step's values; None: all that is free
    experts_on  "cpu": experts' matrices are on the CPU, everything else on the device
    parallel    the ranks that the model is divided over
    mmproj      the file of the vision tower; None: the tower in the model's folder, if it has one that is supported
    any_kind    ignore options that this kind of model does not use, instead of refusing them
    """

    model: str | Path | None
    backend: str | None
    device: str
    threads: int | None
    max_context: int | None
    kv: str | None
    eager: bool
    max_batch: int | None  # None: as many as suit the device
    dequantize: bool
    token_budget: int | None
    speculate: str | None = None
    draft_model: str | Path | None = None
    session_dir: str | Path | None = None
    session_bytes: int = DEFAULT_MAX_BYTES
    kv_memory: int | str | None = None
    num_pages: int | None = None
    num_states: int | None = None
    any_kind: bool = False
    chat_template: str | Path | None = None
    dtype: str = "auto"
    strict: bool = False
    batch_invariant: bool = False
    device_memory: int | str | None = None
    experts_on: str | None = None
    mmproj: str | Path | None = None
    parallel: ParallelOptions = ONE_RANK

    def check(self) -> None:
        """Raise RequestError for an invalid value."""
        if self.kv is not None and self.kv not in list(KV_TYPES):
            raise RequestError(f"kv is {safe_repr(self.kv)}: it must be one of {', '.join(KV_TYPES)}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_OPTIONS:
            raise RequestError(f"dtype is {safe_repr(self.dtype)}: it must be one of {', '.join(DTYPE_OPTIONS)}")
        _ = self.kv_bytes, self.device_bytes
        self.parallel.check()
        if self.experts_on not in (None, HOST):
            raise RequestError(f"experts_on is {safe_repr(self.experts_on)}: it must be 'cpu', or None")
        for name, text in (("backend", "" if self.backend is None else self.backend), ("device", self.device)):
            if not isinstance(text, str):
                raise RequestError(f"{name} is {safe_repr(text)}: it must be a name")
        if self.speculate is not None and self.speculate not in SPECULATION_METHODS:
            methods = ", ".join(SPECULATION_METHODS)
            raise RequestError(f"speculate is {safe_repr(self.speculate)}: it must be one of {methods}, or None")
        if self.draft_model is not None and self.speculate == "ngram":
            raise RequestError(f"speculate is 'ngram', which takes no draft model: leave out {self.draft_model!s:.200}")
        if self.draft_model is None and self.speculate == "draft":
            raise RequestError("speculate is 'draft': name the draft model too, with the option draft_model")
        if self.max_batch is not None and not 1 <= parse_int("max_batch", self.max_batch) <= MAX_BATCH:
            raise RequestError(f"max_batch is {safe_repr(self.max_batch)}: it must be between 1 and {MAX_BATCH}")
        for name, value in (
            ("the option max_context", self.max_context),
            ("token_budget", self.token_budget),
            ("num_pages", self.num_pages),
            ("num_states", self.num_states or None),
        ):
            if value is not None and parse_int(name, value) < 1:
                raise RequestError(f"{name} is {safe_repr(value)}: it must be at least 1")
        if parse_int("session_bytes", self.session_bytes) < 1:
            raise RequestError(f"session_bytes is {safe_repr(self.session_bytes)}: it must be at least 1")
        if self.session_dir is None and self.session_bytes != DEFAULT_MAX_BYTES:
            raise RequestError("session_bytes is given without session_dir: name the folder too, or leave it out")
        if self.session_dir is not None:
            parse_path("session_dir", self.session_dir)
        if self.chat_template is not None:
            if not isinstance(self.chat_template, str | Path):
                raise RequestError(f"chat_template is {safe_repr(self.chat_template)}: it must be a name or a path")
            find_template(str(self.chat_template))
        for name in ("eager", "dequantize", "any_kind", "strict", "batch_invariant"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {safe_repr(getattr(self, name))}: it must be True or False")

    @property
    def batch_limit(self) -> int:
        """`max_batch`, once the device's default is filled in."""
        assert self.max_batch is not None
        return self.max_batch

    @property
    def kv_bytes(self) -> int | None:
        """Bytes for the KV cache; None: chosen by free memory. Raises RequestError if `kv_memory` is not a size."""
        return None if self.kv_memory is None else size_in_bytes("the option kv_memory", self.kv_memory)

    @property
    def device_bytes(self) -> int | None:
        """Bytes of the device that a model may take; None: all. Raises RequestError if `device_memory` is not a
        size."""
        return None if self.device_memory is None else size_in_bytes("the option device_memory", self.device_memory)

    @property
    def wants_split(self) -> bool:
        """Whether an option asks for a part of the model on the CPU."""
        return self.device_memory is not None or self.experts_on is not None


@dataclass(frozen=True)
class LoadedEngine:
    """A loaded model and its engine. `notes` tell the user where the model differs from its files."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    backend: Backend
    worker: AnyWorker | EncoderWorker
    engine: Engine | EncoderEngine
    threads: int
    kv: str
    model_bytes: int  # all packed weights
    expert_bytes: int  # the part of model_bytes that belongs to experts
    load_s: float
    notes: tuple[str, ...]
    draft: Worker | None = None  # the draft model's worker
    split: DeviceSplit | None = None  # between a device and the CPU
    image_reader: ImageReader | None = None  # of a vision model

    @property
    def decoder_engine(self) -> Engine:
        """The engine of a model that is not an encoder. Raises RequestError, which names the alternative, for one."""
        self.check_decoder()
        assert isinstance(self.engine, Engine)
        return self.engine

    @property
    def decoder_worker(self) -> AnyWorker:
        """The worker of `decoder_engine`, or the group of its ranks. Raises the same error."""
        self.check_decoder()
        assert isinstance(self.worker, Worker | WorkerGroup)
        return self.worker

    def check_decoder(self) -> None:
        """Raise RequestError, which names the alternative, for an encoder: it generates nothing."""
        if isinstance(self.engine, EncoderEngine):
            raise self.engine.generation_error()

    @property
    def compile_s(self) -> float:
        """Seconds spent tracing and compiling programs."""
        return sum(worker.runner.compile_s for worker in (self.worker, self.draft) if worker is not None)

    def close(self) -> None:
        """Free the memory and the threads."""
        if self.image_reader is not None:
            self.image_reader.close()
        self.close_workers()
        self.backend.close()

    def close_workers(self) -> None:
        """Free the memory of everything but the back-end."""
        self.engine.close()
        self.worker.close()
        if self.draft is not None:
            self.draft.close()

    @cached_property
    def model_identity(self) -> ModelIdentity:
        """The hash of the model's files. Reads them again, since few callers need it."""
        return read_identity(self.path)

    @property
    def identity(self) -> str:
        """The hash that identifies the model in new session files and recordings."""
        return self.model_identity.sha256


def use_unwrapped(backend: Backend) -> Backend:
    """Return the back-end as it is."""
    return backend


def read_identity(path: Path) -> ModelIdentity:
    """Hash the model in these files."""
    with closing(open_model(path)) as source:
        return compute_identity(source)


def load_engine(
    options: EngineOptions,
    progress: Progress | None,
    wrap_backend: Callable[[Backend], Backend] = use_unwrapped,
    announce: Announce | None = None,
) -> LoadedEngine:
    """Load the models that the options name, on their back-end as `wrap_backend` returns it. Raises SporeError.

    A model that its device does not hold is split between the device and the CPU, unless `wrap_backend` is given.
    `announce` is called with the line about the split before weights are loaded.
    """
    options.check()
    path = resolve(options.model, progress)
    host_threads = choose_threads(options.threads)
    threads = rank_threads(host_threads, options.parallel)[0]
    start = perf_counter()
    if path.is_dir() and (path / "config.json").is_file() and find_image_encoder(path) is not None:
        raise RequestError(
            f"{path}: an image encoder, which generates no text. Embed with it, or open it with ImageTextEncoder."
        )
    with ExitStack() as files:
        source = files.enter_context(closing(open_model(path)))
        options = drop_unused_options(options, source)
        draft_source = None
        if options.draft_model is not None:
            download_start = perf_counter()
            draft_path = resolve(options.draft_model, progress)
            start += perf_counter() - download_start
            draft_source = files.enter_context(closing(open_model(draft_path)))
        name, device = options.backend or settings.BACKEND.value, options.device
        if options.parallel.devices:
            name, device = options.parallel.devices[0]
        choice = None
        if name == AUTO:
            sources = [each for each in (source, draft_source) if each is not None]
            choice = choose_for_model(
                sources,
                device,
                threads,
                options.dtype,
                kv=options.kv,
                max_context=options.max_context,
                dequantize=options.dequantize,
                batch_invariant=options.batch_invariant,
                strict=options.strict,
                splits=options.wants_split,
            )
            name, device = choice.name, choice.device
        check_device_option(options, name)
        backend = open_device(
            name,
            device,
            threads,
            options.dtype,
            strict=options.strict,
            batch_invariant=options.batch_invariant,
        )
        backend = wrap_backend(backend)
        try:
            requested_batch = options.max_batch
            options = replace(options, max_batch=requested_batch or backend.traits.max_batch)
            check_step_size(options, backend)
            model = ModelLoader(source, backend, options.kv, dequantize=options.dequantize)
            is_encoder = isinstance(model.model, Encoder)
            check_supported(options.parallel, is_encoder=is_encoder, is_split=options.wants_split)
            draft = None
            if draft_source is not None:
                draft = ModelLoader(draft_source, backend, options.kv, dequantize=options.dequantize)
            notes = [str(choice)] if choice is not None else []
            if note := note_waiting_threads(host_threads, options.parallel, name):
                notes.append(note)
                if announce is not None:
                    announce(note)
            found = None
            if wrap_backend is use_unwrapped and options.parallel.is_single:
                options, note = shorten_steps(options, model, draft)
                notes += [note] if note else []
                found = split_if_needed(options, model, draft, threads, device=device)
            if found is not None:
                backend, model, draft = found.backend, found.model, found.draft
                options = replace(options, max_batch=requested_batch or backend.traits.max_batch)
                check_step_size(options, backend)
                notes.append(str(found.split))
                if announce is not None:
                    announce(str(found.split))
            split = None if found is None else found.split
            # Before the KV cache is sized: the tower's weights take memory, too.
            tower = load_tower(options.mmproj, source, backend, threads, progress, dequantize=options.dequantize)
            if tower is not None:
                files.callback(tower.source.close)
            ranks = None
            if not options.parallel.is_single:
                ranks = partial(_start_ranks, options, model, name, device, host_threads, progress)
            loaded = _load(options, model, draft, threads, start, progress, split, ranks)
            reader = None
            try:
                if tower is not None:
                    reader = connect_tower(
                        tower, loaded.decoder_worker, loaded.decoder_engine, loaded.tokenizer, options.eager
                    )
            except BaseException:
                loaded.close_workers()
                raise
            skipped = () if tower is None else source.vision_notes()  # of the text model's schema
            notes += [note for note in loaded.notes if note not in skipped]
            if tower is not None and reader is not None:
                notes += note_missing_settings(tower.source, reader.processor)
            return replace(loaded, notes=tuple(notes), split=split, image_reader=reader)
        except BaseException:
            backend.close()
            raise


def choose_for_model(
    sources: Sequence[ModelSource],
    device: str,
    threads: int,
    dtype: str = "auto",
    *,
    kv: str | None = None,
    max_context: int | None = None,
    dequantize: bool = False,
    batch_invariant: bool = False,
    strict: bool = False,
    splits: bool = False,
) -> BackendChoice:
    """Return the back-end and device of `--backend auto` for a model, and its draft model. Raises BackendError.

    A device must hold the weights, the KV cache of one context, and a step, or at least one layer: the rest of the
    model is on the CPU then, unless `strict`. With `splits`, for which options ask, the CPU alone is not a choice.
    """
    host_rate = cache(partial(measure_host_rate, threads))

    def cost_on(backend: Backend) -> TokenCost:
        loaders = [ModelLoader(each, backend, kv, dequantize=dequantize) for each in sources]
        nbytes = sum(loader.nbytes for loader in loaders)
        if isinstance(loaders[0].model, Encoder):
            return TokenCost(0, 2 * sum(prod(param.shape) for param in loaders[0].params), nbytes)
        num_pages = count_pages(min(max_context or DEFAULT_CONTEXT, loaders[0].config.context_length))
        beside = sum(num_pages * loader.page_bytes + loader.step_bytes(STEP_TOKENS) for loader in loaders)
        free = backend.free_bytes()
        if free is not None and nbytes > free and not splits and not strict and len(loaders) == 1:
            split = preview_split(loaders[0], threads, int(free * backend.traits.memory_share), num_pages)
            if split.layers:
                on_device, on_host = split.device_map.read_bytes
                return TokenCost(on_device, 0, 0, on_host / host_rate(), split.layer_text)
        return TokenCost(nbytes, 0, 0 if splits else nbytes + beside)

    def open_candidate(name: str, place: str) -> Backend:
        return open_device(name, place, threads, dtype, batch_invariant=batch_invariant)

    allows_host = dtype in HOST_DTYPES and not splits
    return choose_backend(device, open_candidate, cost_on, allows_host=allows_host, strict=strict)


def check_step_size(options: EngineOptions, backend: Backend) -> None:
    """Raise RequestError if a step could have more tokens than the back-end's largest program."""
    max_step_tokens = max(backend.step_buckets.values())
    for name, value in (("token_budget", options.token_budget), ("max_batch", options.max_batch)):
        if value is not None and value > max_step_tokens:
            reason = f"a step on {backend.name} has at most {max_step_tokens} tokens"
            raise RequestError(f"{name} is {safe_repr(value)}: {reason}; give less, or leave it out")


def _load(
    options: EngineOptions,
    model: ModelLoader,
    draft: ModelLoader | None,
    threads: int,
    start: float,
    progress: Progress | None,
    split: DeviceSplit | None,
    start_ranks: StartRanks | None,
) -> LoadedEngine:
    if isinstance(model.model, Encoder):
        return _load_encoder(options, model, draft, threads, start, progress)
    source = model.source
    if not options.parallel.is_single:
        limits = choose_rank_limits(options, model, draft)
    elif split is None:
        limits = choose_limits(options, model, draft)
    else:
        limits = choose_split_limits(options, model, draft, split)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool, ExitStack() as cleanup:
        tokenizer_future = pool.submit(load_tokenizer, source.path)
        if draft is not None:
            check_vocabularies(tokenizer_future.result(), load_tokenizer(draft.source.path))
        loaded = model.load_decoder(limits.max_context, threads, progress) if start_ranks is None else None
        tokenizer = tokenizer_future.result()
        if options.chat_template is not None:
            use_template(tokenizer, str(options.chat_template))
        load_s = perf_counter() - start
        worker: AnyWorker
        if loaded is not None:
            worker = model.create_worker(loaded, limits, progress, eager=options.eager)
        else:
            assert start_ranks is not None
            worker = start_ranks(limits)
            load_s = perf_counter() - start
        cleanup.callback(worker.close)
        speculation = Speculation(NgramDrafter()) if options.speculate == "ngram" else None
        draft_worker = None
        if draft is not None:
            draft_worker = load_draft_worker(draft, limits, threads, progress, eager=options.eager)
            cleanup.callback(draft_worker.close)
            speculation = Speculation(ModelDrafter(draft_worker, draft_worker.limits, limits.vocab))
        session_folder = _open_session_folder(options, source.path, worker)  # last: it has threads and files
        cleanup.pop_all()
    trim_heap()
    return LoadedEngine(
        source.path,
        source.config,
        tokenizer,
        model.backend,
        worker,
        Engine(
            worker,
            limits,
            speculation,
            session_folder,
            _make_device_sampler(options, model.backend, limits),
            model.backend.context,
        ),
        threads,
        model.kv,
        model.nbytes,
        model.expert_bytes,
        load_s,
        source.notes,
        draft_worker,
    )


def _make_device_sampler(options: EngineOptions, backend: Backend, limits: EngineConfig) -> DeviceSampler | None:
    """Return a sampler for an asynchronous device; None for others, for single ops (--eager), and for several
    ranks."""
    if options.eager or not backend.traits.is_async or not options.parallel.is_single:
        return None
    return DeviceSampler(backend, limits.vocab, max(limits.max_batch, limits.token_budget))


def _load_encoder(
    options: EngineOptions,
    model: ModelLoader,
    draft: ModelLoader | None,
    threads: int,
    start: float,
    progress: Progress | None,
) -> LoadedEngine:
    check_options(options, draft)
    source = model.source
    limits = encoder_limits(options, model)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as pool:
        tokenizer_future = pool.submit(load_tokenizer, source.path)
        engine = load_encoder_engine(options, model, limits, threads, progress)
        try:
            tokenizer = tokenizer_future.result()
        except BaseException:
            engine.worker.close()
            raise
    load_s = perf_counter() - start - engine.worker.runner.compile_s
    trim_heap()
    return LoadedEngine(
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


def _start_ranks(
    options: EngineOptions,
    model: ModelLoader,
    backend: str,
    device: str,
    threads: int,
    progress: Progress | None,
    limits: EngineConfig,
) -> WorkerGroup:
    """Start the ranks of a model. `threads` are those of all ranks of this host."""
    rank_options = RankOptions(
        path=str(model.source.path.absolute()),
        identity=compute_identity(model.source).sha256,
        backend=backend,
        device=device,
        dtype=options.dtype,
        threads=threads,
        strict=options.strict,
        batch_invariant=options.batch_invariant,
        kv=model.kv,
        dequantize=options.dequantize,
        eager=options.eager,
        limits=limits,
        parallel=options.parallel.config,
        rank=0,
        group=GroupSpec("memory", ""),
        cores=[],
    )
    plan = model.plan_sharding(options.parallel.config)
    return start_group(model.backend, rank_options, options.parallel, progress, plan)


def _open_session_folder(options: EngineOptions, path: Path, worker: AnyWorker) -> OffloadStore | None:
    """Return the folder to which the KV cache of idle conversations is offloaded; None without `session_dir`."""
    if options.session_dir is None:
        return None
    folder = parse_path("session_dir", options.session_dir)
    identity = cache(lambda: read_identity(path).sha256)
    return OffloadStore(folder, worker, identity, options.session_bytes)
