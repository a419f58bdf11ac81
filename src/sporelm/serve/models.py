"""The models of a server, by name: loaded when first asked for, unloaded when memory or time says so."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

from sporelm.api.async_llm import AsyncLLM
from sporelm.backends.backend import Progress
from sporelm.errors import MemoryShortage, RequestError, SporeError, shown
from sporelm.serve.answering import Bell
from sporelm.serve.config import ModelSpec, ServeConfig
from sporelm.serve.failures import RETRY_SECONDS, Refusal
from sporelm.serve.served_model import ServedModel, too_large
from sporelm.serve.unbroken import unbroken
from sporelm.weights import store
from sporelm.weights.load import in_units

LEAVING = 2.0  # seconds in which requests that a server which ends has broken off give back what they use
log = logging.getLogger("sporelm.serve")

Opener = Callable[[ModelSpec, Progress | None], AsyncLLM]
Farewell = Callable[["ServedModel"], Awaitable[None]]


class Models:
    """Knows all models by name and holds those that are loaded."""

    def __init__(self, config: ServeConfig, open_model: Opener | None = None) -> None:
        self.config = config
        self.specs = {spec.name: spec for spec in config.models}
        self.loaded: dict[str, ServedModel] = {}
        self.sizes: dict[str, int] = {}  # bytes of those that were loaded once
        self.farewells: list[Farewell] = []  # told before a model goes
        self.progress: Progress | None = None
        self.is_strict = False  # whether a model that alone exceeds `model_memory` is refused, not just warned about
        self._open = open_model or self._opened
        # One comes or goes at a time: what a second one finds free would be the first one's, and a model that comes
        # again must find the sessions that have gone with it.
        self._changing = asyncio.Lock()
        self._wanted: Counter[str] = Counter()  # how many wait for a model, by its name
        self._closed = False
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def default(self) -> str:
        return self.config.models[0].name

    def spec(self, name: str | None) -> ModelSpec:
        """The model of a name, the default one for none, or for one that is not known where the server takes any name.

        Raises Refusal, 404, for a name that is not known.
        """
        found = self.specs.get(name or self.default)
        if found is None and self.config.any_model_name:
            found = self.specs[self.default]
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str | None) -> Refusal:
        """Return the refusal of a name that is not known."""
        names = ", ".join(list(self.specs)[:20])
        message = f"there is no model {shown(name, 100)}: this server has {names}"
        return Refusal(404, message, code="model_not_found", param="model")

    @asynccontextmanager
    async def use(self, name: str | None = None) -> AsyncIterator[ServedModel]:
        """A model, loaded first if it is not; it stays until the end of the `with`. It is loaded to the end even if
        whoever asked for it leaves.

        Raises Refusal (404, 503), MemoryShortage, ModelError.
        """
        spec = self.spec(name)
        self._wanted[spec.name] += 1
        try:
            model = self.at_hand(name)
            if model is None:
                model = await unbroken(self._load(spec))
            model.users += 1
        finally:
            self._wanted[spec.name] -= 1
        try:
            yield model
        finally:
            model.users -= 1
            model.used_at = monotonic()

    def at_hand(self, name: str | None) -> ServedModel | None:
        """A model that is loaded and well, or None. Raises Refusal, 404."""
        model = self.loaded.get(self.spec(name).name)
        return model if model is not None and model.llm.healthy else None

    async def _load(self, spec: ModelSpec) -> ServedModel:
        async with self._changing:
            if self._closed:
                raise Refusal(503, "the server is ending", "server_error", "ending")
            if not self._wanted[spec.name]:
                raise asyncio.CancelledError  # all have left who asked for it
            return self.at_hand(spec.name) or await self._loaded(spec)

    async def _loaded(self, spec: ModelSpec) -> ServedModel:
        if (failed := self.loaded.get(spec.name)) is not None:  # a new engine may do better
            await self._free(failed)
        await self._make_room(self.sizes.get(spec.name) or _file_bytes(spec))
        began = monotonic()
        while True:
            try:
                llm = await asyncio.to_thread(self._open, spec, self._told)
                break
            except MemoryShortage:
                if not await self._unload_one():
                    raise
        llm.llm.engine.scheduler.waiting.limit = self.config.max_waiting
        model = ServedModel(spec.name, llm, Bell(asyncio.get_running_loop()))
        most = self.config.model_memory
        if self.is_strict and most is not None and model.nbytes > most:
            reason = too_large(model, model.nbytes, most)  # asks the model, so before it is closed
            await llm.close()
            raise RequestError(reason)
        llm.pump.told = model.bell.ring
        model.pinging = asyncio.ensure_future(_quietly(model.ping))
        self.loaded[spec.name], self.sizes[spec.name] = model, model.nbytes
        await self._trim(model)
        if self._sweeper is None and self.config.idle_seconds:
            self._sweeper = asyncio.ensure_future(self._sweep())
        log.info("loaded %s in %.2f s", spec.name, monotonic() - began)
        for note in llm.llm.notes:
            log.warning("%s: %s", spec.name, note)
        return model

    def _told(self, stage: str, done: int, total: int) -> None:
        """What loading tells of its progress. Raises RequestError once the server ends: nobody will use the model."""
        if self._closed:
            raise RequestError("the server is ending")
        if self.progress is not None:
            self.progress(stage, done, total)

    def check_limit(self) -> None:
        """Raise RequestError if the first model's files alone are larger than what may be loaded."""
        first, most = self.config.models[0], self.config.model_memory
        if most is not None and (needed := _file_bytes(first)) > most:
            raise RequestError(
                f"its weights take {in_units(needed)}, and model_memory is {in_units(most)}. Raise --model-memory, or "
                "choose a smaller model."
            )

    async def _make_room(self, needed: int) -> None:
        """Unload until so many bytes more are within the limit. Raises Refusal, 503, while those loaded are in use."""
        most = self.config.model_memory
        while most is not None and self.loaded:
            held = sum(model.nbytes for model in self.loaded.values())
            if held + needed <= most:
                return
            if not await self._unload_one():
                raise Refusal(
                    503,
                    f"{held / 1e6:.0f} MB of models are in use and {needed / 1e6:.0f} MB more are needed; the limit is "
                    f"{most / 1e6:.0f} MB (model_memory): ask again when a model is idle",
                    "server_error",
                    "models_busy",
                    {"retry-after": str(5 * RETRY_SECONDS)},
                )

    async def _trim(self, newest: ServedModel) -> None:
        """Unload others, where a model has turned out to be larger than its files said."""
        most = self.config.model_memory
        while most is not None and sum(model.nbytes for model in self.loaded.values()) > most:
            if not await self._unload_one(newest):
                told = too_large(newest, sum(model.nbytes for model in self.loaded.values()), most)
                log.warning("more is loaded than the limit: %s", told)
                return

    async def _unload_one(self, but: ServedModel | None = None) -> bool:
        """Unload the model that was unused longest, but not this one; False if all are in use."""
        idle = [model for model in self.loaded.values() if self._is_idle(model) and model is not but]
        if not idle:
            return False
        await self._free(min(idle, key=lambda model: model.used_at))
        return True

    async def unload(self, model: ServedModel) -> None:
        """Free a model, to the end even if whoever asked for it leaves. Does nothing to one that is used, or gone."""
        await unbroken(self._unload(model))

    async def _unload(self, model: ServedModel) -> None:
        async with self._changing:
            if self._is_idle(model) and self.loaded.get(model.name) is model:
                await self._free(model)

    def _is_idle(self, model: ServedModel) -> bool:
        """Whether nobody uses a model, or is about to."""
        return not model.users and not self._wanted[model.name]

    async def _free(self, model: ServedModel) -> None:
        """Free a model. What it was doing is cancelled."""
        del self.loaded[model.name]
        try:
            for farewell in self.farewells:
                await farewell(model)
        finally:
            if model.pinging is not None:
                model.pinging.cancel()
            await model.llm.close()
        log.info("unloaded %s", model.name)

    async def _sweep(self) -> None:
        """Unload what nobody has used for so long."""
        while True:
            await asyncio.sleep(min(self.config.idle_seconds / 4, 30.0))
            limit = monotonic() - self.config.idle_seconds
            for model in list(self.loaded.values()):
                if not model.users and model.used_at < limit:
                    await self.unload(model)

    def troubles(self) -> list[str]:
        """What is wrong with the engines; nothing if all are well."""
        found = [model.trouble(self.config.stall_seconds) for model in self.loaded.values()]
        return [trouble for trouble in found if trouble is not None]

    async def close(self) -> None:
        """Unload everything, and load nothing any more."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        until = monotonic() + LEAVING
        async with self._changing:
            while any(model.users for model in self.loaded.values()) and monotonic() < until:
                await asyncio.sleep(0.01)  # a session that is still taken could not be put to sleep
            for model in list(self.loaded.values()):
                await self._free(model)

    def _opened(self, spec: ModelSpec, progress: Progress | None) -> AsyncLLM:
        options: dict[str, Any] = dict(self.config.engine)
        adapters = self.config.adapters if spec.name == self.default else ()
        if self.config.session_dir is not None:
            folder = self.config.session_dir / "pages"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            options["session_dir"] = folder
        try:
            llm = AsyncLLM(
                spec.path,
                progress=progress,
                any_kind=True,
                adapters=adapters,
                render_seconds=self.config.render_seconds,
                grammar_seconds=self.config.grammar_seconds,
                **options,
            )
            llm.learn_templates()
            llm.llm.adapters.default = adapters[0].title if adapters else None
            _ = llm.llm.opened.identity  # read in this thread, for the fingerprint of replies
            return llm
        except (RequestError, MemoryShortage) as reason:
            raise type(reason)(self._as_written(str(reason))) from reason

    def _as_written(self, text: str) -> str:
        """An error whose options are called as they were given: those of a file by its names."""
        for name in self.config.engine_file:
            text = text.replace(f"--{name.replace('_', '-')}", f"engine.{name}")
        return text


def _file_bytes(spec: ModelSpec) -> int:
    """About what a model takes, as far as its files say."""
    with suppress(OSError, SporeError):
        path = store.resolve(spec.path, fetch=False)
        if path.is_file():
            return path.stat().st_size
        return sum(each.stat().st_size for each in path.glob("*.safetensors"))
    return 0


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    """Something in the background, which may fail: whoever asks hears of it elsewhere."""
    with suppress(Exception):
        await work()
