"""ModelPool: a server's models by name, loaded on demand, unloaded when memory or time runs out."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

from sporelm.api.async_llm import AsyncLLM
from sporelm.backends.protocol import Progress
from sporelm.errors import MemoryShortage, RequestError, SporeError, rename_options, safe_repr
from sporelm.files import store
from sporelm.serve.chat.answer_stream import Notifier
from sporelm.serve.http.api_errors import RETRY_SECONDS, ApiError
from sporelm.serve.model_pool.served_model import ServedModel, memory_limit_message
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from sporelm.serve.shielded import shielded
from sporelm.units import in_units

VISION_REMEDY = "Choose a model with vision (GET /v1/models shows which)."
RELEASE_SECONDS = 2.0  # for cancelled requests to release their models when the server ends
log = logging.getLogger("sporelm.serve")

ModelOpener = Callable[[ModelSpec, Progress | None], AsyncLLM]
UnloadCallback = Callable[["ServedModel"], Awaitable[None]]


class ModelPool:
    """Knows all models by name and holds the loaded ones."""

    def __init__(self, config: ServeConfig, open_model: ModelOpener | None = None) -> None:
        self.config = config
        self.specs = {spec.name: spec for spec in config.models}
        self.loaded: dict[str, ServedModel] = {}
        self.known_bytes: dict[str, int] = {}  # of models that were loaded before
        self.on_unload: list[UnloadCallback] = []
        self.progress: Progress | None = None
        self.is_strict = False  # whether a model that alone exceeds `model_memory` is refused, not just warned about
        self._open_model = open_model or self._open_async_llm
        # Models are loaded and unloaded one at a time: a second load would count the same free memory, and a model
        # that is loaded again must find the sessions that were saved when it was unloaded.
        self._changing = asyncio.Lock()
        self._num_waiting: Counter[str] = Counter()  # requests that wait for a model, by its name
        self._is_closed = False
        self._may_split = True  # whether the model that is loaded may lie partly on the CPU
        self._has_refused_split = False
        self._announced: set[str] = set()  # lines that were logged before weights were loaded
        self._idle_task: asyncio.Task[None] | None = None

    @property
    def default(self) -> str:
        return self.config.models[0].name

    def spec(self, name: str | None) -> ModelSpec:
        """Return the model of a name; the default one for None, and for an unknown name where the server accepts any.

        Raises ApiError, 404, for an unknown name.
        """
        spec = self.specs.get(name or self.default)
        if spec is None and self.config.any_model_name:
            spec = self.specs[self.default]
        if spec is None:
            raise self.unknown_model(name)
        return spec

    def unknown_model(self, name: str | None) -> ApiError:
        names = ", ".join(list(self.specs)[:20])
        message = f"there is no model {safe_repr(name, 100)}: this server has {names}"
        return ApiError(404, message, code="model_not_found", param="model")

    @asynccontextmanager
    async def use(self, name: str | None = None) -> AsyncIterator[ServedModel]:
        """Hold a model until the end of the `with`, after loading it if needed. A load goes on even if its caller is
        cancelled.

        Raises ApiError (404, 503), MemoryShortage, ModelError.
        """
        spec = self.spec(name)
        self._num_waiting[spec.name] += 1
        try:
            model = self.loaded_model(name)
            if model is None:
                model = await shielded(self._load_if_needed(spec))
            model.num_users += 1
        finally:
            self._num_waiting[spec.name] -= 1
        try:
            yield model
        finally:
            model.num_users -= 1
            model.last_used_at = monotonic()

    def loaded_model(self, name: str | None) -> ServedModel | None:
        """Return a model that is loaded and healthy, or None. Raises ApiError, 404."""
        model = self.loaded.get(self.spec(name).name)
        return model if model is not None and model.async_llm.healthy else None

    async def _load_if_needed(self, spec: ModelSpec) -> ServedModel:
        async with self._changing:
            if self._is_closed:
                raise ApiError(503, "the server is shutting down", "server_error", "ending")
            if not self._num_waiting[spec.name]:
                raise asyncio.CancelledError  # every caller has been cancelled
            return self.loaded_model(spec.name) or await self._load(spec)

    async def _load(self, spec: ModelSpec) -> ServedModel:
        if (failed := self.loaded.get(spec.name)) is not None:  # a new engine replaces a failed one
            await self._free(failed)
        await self._make_room(self.known_bytes.get(spec.name) or _file_bytes(spec))
        start = monotonic()
        self._may_split, self._has_refused_split = not self.loaded, False  # idle models make room first
        while True:
            try:
                async_llm = await asyncio.to_thread(self._open_model, spec, self._report_progress)
                break
            except MemoryShortage:
                if not await self._unload_one():
                    if not self._has_refused_split:
                        raise
                    self._may_split, self._has_refused_split = True, False
        async_llm.limit_waiting(self.config.max_waiting)
        model = ServedModel(spec.name, async_llm, Notifier(asyncio.get_running_loop()))
        max_bytes = self.config.model_memory
        if self.is_strict and max_bytes is not None and model.nbytes > max_bytes:
            reason = memory_limit_message(model, model.nbytes, max_bytes)  # needs the model, so before it is closed
            await async_llm.close()
            raise RequestError(reason)
        async_llm.notify_after_steps(model.notifier.notify)
        model.ping_task = asyncio.ensure_future(_ignore_errors(model.ping))
        self.loaded[spec.name] = model
        self.known_bytes[spec.name] = model.nbytes
        await self._trim(model)
        if self._idle_task is None and self.config.idle_seconds:
            self._idle_task = asyncio.ensure_future(self._unload_idle_models())
        _exempt_from_gc()
        log.info("loaded %s in %.2f s", spec.name, monotonic() - start)
        for note in model.llm.notes:
            if note not in self._announced:
                log.warning("%s: %s", spec.name, note)
        return model

    def _report_progress(self, phase: str, done: int, total: int) -> None:
        """Report the progress of a load. Raises RequestError once the server ends: the model will not be used."""
        if self._is_closed:
            raise RequestError("the server is shutting down")
        if self.progress is not None:
            self.progress(phase, done, total)

    def check_first_model_size(self) -> None:
        """Raise RequestError if the first model's files alone exceed `model_memory`."""
        first, max_bytes = self.config.models[0], self.config.model_memory
        if max_bytes is not None and (needed := _file_bytes(first)) > max_bytes:
            raise RequestError(
                f"its weights take {in_units(needed)}, and model_memory is {in_units(max_bytes)}. Raise "
                "--model-memory, or choose a smaller model."
            )

    async def _make_room(self, needed_bytes: int) -> None:
        """Unload models until `needed_bytes` more are within the limit. Raises ApiError, 503, while all are in use."""
        max_bytes = self.config.model_memory
        while max_bytes is not None and self.loaded:
            used_bytes = sum(model.nbytes for model in self.loaded.values())
            if used_bytes + needed_bytes <= max_bytes:
                return
            if not await self._unload_one():
                raise ApiError(
                    503,
                    f"{used_bytes / 1e6:.0f} MB of models are in use and {needed_bytes / 1e6:.0f} MB more are needed; "
                    f"the limit is {max_bytes / 1e6:.0f} MB (model_memory): try again when a model is idle",
                    "server_error",
                    "models_busy",
                    {"retry-after": str(5 * RETRY_SECONDS)},
                )

    async def _trim(self, newest: ServedModel) -> None:
        """Unload other models, where a model has turned out to be larger than its files."""
        max_bytes = self.config.model_memory
        while max_bytes is not None and sum(model.nbytes for model in self.loaded.values()) > max_bytes:
            if not await self._unload_one(newest):
                used_bytes = sum(model.nbytes for model in self.loaded.values())
                message = memory_limit_message(newest, used_bytes, max_bytes)
                log.warning("loaded models exceed the limit: %s", message)
                return

    async def _unload_one(self, exclude: ServedModel | None = None) -> bool:
        """Unload the least recently used idle model except `exclude`. Return False if all are in use."""
        idle = [model for model in self.loaded.values() if self._is_idle(model) and model is not exclude]
        if not idle:
            return False
        await self._free(min(idle, key=lambda model: model.last_used_at))
        return True

    async def unload(self, model: ServedModel) -> None:
        """Unload a model, even if the caller is cancelled. Does nothing if it is in use, or unloaded already."""
        await shielded(self._unload(model))

    async def _unload(self, model: ServedModel) -> None:
        async with self._changing:
            if self._is_idle(model) and self.loaded.get(model.name) is model:
                await self._free(model)

    def _is_idle(self, model: ServedModel) -> bool:
        """Return whether no request uses a model or waits for it."""
        return not model.num_users and not self._num_waiting[model.name]

    async def _free(self, model: ServedModel) -> None:
        """Free a model. Its running requests are cancelled."""
        del self.loaded[model.name]
        try:
            for callback in self.on_unload:
                await callback(model)
        finally:
            if model.ping_task is not None:
                model.ping_task.cancel()
            await model.async_llm.close()
            gc.unfreeze()  # what else is loaded is exempt again from the next load on
        log.info("unloaded %s", model.name)

    async def _unload_idle_models(self) -> None:
        """Unload models that were unused for `idle_seconds`, until the server ends."""
        while True:
            await asyncio.sleep(min(self.config.idle_seconds / 4, 30.0))
            limit = monotonic() - self.config.idle_seconds
            for model in list(self.loaded.values()):
                if not model.num_users and model.last_used_at < limit:
                    await self.unload(model)

    def problems(self) -> list[str]:
        """Return the problems of the engines; an empty list if all are healthy."""
        problems = [model.problem(self.config.stall_seconds) for model in self.loaded.values()]
        return [problem for problem in problems if problem is not None]

    @property
    def is_restarting(self) -> bool:
        """Whether the ranks of a model are being started again, and no engine has another problem."""
        troubled = [model for model in self.loaded.values() if model.problem(self.config.stall_seconds) is not None]
        return bool(troubled) and all(model.is_restarting for model in troubled)

    async def close(self) -> None:
        """Unload all models for good."""
        self._is_closed = True
        if self._idle_task is not None:
            self._idle_task.cancel()
        deadline = monotonic() + RELEASE_SECONDS
        async with self._changing:
            while any(model.num_users for model in self.loaded.values()) and monotonic() < deadline:
                await asyncio.sleep(0.01)  # a session that a request still holds could not be saved
            for model in list(self.loaded.values()):
                await self._free(model)

    def _open_async_llm(self, spec: ModelSpec, progress: Progress | None) -> AsyncLLM:
        options: dict[str, Any] = dict(self.config.engine)
        adapters = self.config.adapters if spec.name == self.default else ()
        if self.config.session_dir is not None:
            folder = self.config.session_dir / "pages"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            options["session_dir"] = folder
        try:
            async_llm = AsyncLLM(
                spec.path,
                progress=progress,
                announce=partial(self.announce_split, spec.name),
                any_kind=True,
                adapters=adapters,
                mmproj=spec.mmproj,
                render_seconds=self.config.render_seconds,
                grammar_seconds=self.config.grammar_seconds,
                **options,
            )
            async_llm.llm.vision_remedy = VISION_REMEDY
            async_llm.warm_up_templates()
            async_llm.llm.adapters.default = adapters[0].resolved_name if adapters else None
            _ = async_llm.llm.identity  # hashes the files in this thread, for the fingerprint of replies
            return async_llm
        except (RequestError, MemoryShortage) as reason:
            raise type(reason)(self._with_file_names(str(reason))) from reason

    def announce_split(self, name: str, line: str) -> None:
        """Log the split of a model, before its weights are loaded. Raises MemoryShortage if others can make room."""
        if not self._may_split and not {"device_memory", "experts_on"} & self.config.engine.keys():
            self._has_refused_split = True
            raise MemoryShortage(f"{name}: {line}")
        self._announced.add(line)
        log.warning("%s: %s", name, line)

    def _with_file_names(self, text: str) -> str:
        """Return an error message with the engine options of the configuration file under their names there."""
        return rename_options(text, {name: f"engine.{name}" for name in self.config.engine_options_from_file}.get)


def _file_bytes(spec: ModelSpec) -> int:
    """Return about how many bytes a model takes, by the size of its files; 0 if they do not exist."""
    with suppress(OSError, SporeError):
        path = store.resolve(spec.path, fetch=False)
        if path.is_file():
            tower = 0 if spec.mmproj is None else store.resolve(spec.mmproj, fetch=False).stat().st_size
            return path.stat().st_size + tower
        return sum(each.stat().st_size for each in path.glob("*.safetensors"))
    return 0


def _exempt_from_gc() -> None:
    """Exempt the objects of loaded models from garbage collection: a full one would pause all streams for some 20 ms.

    Reference counts still free them.
    """
    gc.collect()
    gc.freeze()


async def _ignore_errors(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work whose errors are reported elsewhere."""
    with suppress(Exception):
        await work()
