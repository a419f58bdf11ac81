"""Models that come and go while people ask for them and leave."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.engine.pace import Pace
from sporelm.serve.config import ModelSpec, ServeConfig
from sporelm.serve.failures import Refusal
from sporelm.serve.models import Models
from sporelm.serve.served_model import ServedModel, too_large


class Stub:
    """As much of an `AsyncLLM` as models are held by."""

    def __init__(self) -> None:
        self.healthy = True
        self.closed = 0
        self.pump = SimpleNamespace(told=None, failure=None)
        self.llm = SimpleNamespace(
            notes=[], engine=SimpleNamespace(scheduler=SimpleNamespace(waiting=SimpleNamespace(limit=0)))
        )

    async def between_steps(self, what: Callable[[], object]) -> object:
        return what()

    async def close(self) -> None:
        self.closed += 1


class Opening:
    """Opens models when `may` is set; `began` says that it is asked to."""

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        self.made: list[Stub] = []

    def __call__(self, spec: ModelSpec, progress: object) -> Any:
        self.began.set()
        assert self.may.wait(60)
        self.made.append(Stub())
        return self.made[-1]


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    monkeypatch.setattr(ServedModel, "nbytes", 100)
    made = Opening()
    yield made
    made.may.set()


def models_of(opening: Opening, **fields: Any) -> Models:
    specs = tuple(ModelSpec(name, f"{name}.gguf") for name in ("a", "b"))
    return Models(ServeConfig(models=specs, **fields), opening)


async def used(models: Models, name: str) -> ServedModel:
    async with models.use(name) as model:
        return model


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def leave(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_model_is_loaded_to_the_end_and_once_when_those_leave_who_asked_for_it(opening: Opening) -> None:
    async def main() -> None:
        models = models_of(opening)
        first = asyncio.ensure_future(used(models, "a"))
        await asyncio.to_thread(opening.began.wait, 60)
        await leave(first)
        second = asyncio.ensure_future(used(models, "a"))
        opening.may.set()
        model = await second
        assert model.llm is opening.made[0]  # type: ignore[comparison-overlap]
        assert len(opening.made) == 1
        assert model.users == 0
        await models.close()
        assert opening.made[0].closed == 1

    run(main())


def test_a_server_that_ends_waits_for_what_is_being_loaded_and_frees_it(opening: Opening) -> None:
    async def main() -> None:
        models = models_of(opening)
        asked = [asyncio.ensure_future(used(models, name)) for name in ("a", "b")]
        await asyncio.to_thread(opening.began.wait, 60)
        for task in asked:
            await leave(task)
        closing = asyncio.ensure_future(models.close())
        await asyncio.sleep(0)
        opening.may.set()
        await closing
        assert [made.closed for made in opening.made] == [1], "b was not begun any more"
        assert not models.loaded
        with pytest.raises(Refusal, match="ending"):
            await used(models, "a")

    run(main())


def test_a_model_that_must_go_is_freed_even_if_who_needs_its_room_leaves(opening: Opening) -> None:
    async def main() -> None:
        opening.may.set()
        models = models_of(opening, model_memory=150)
        models.sizes["b"] = 100
        going, may_go = asyncio.Event(), asyncio.Event()

        async def farewell(model: ServedModel) -> None:
            going.set()
            await may_go.wait()

        models.farewells.append(farewell)
        await used(models, "a")
        wish = asyncio.ensure_future(used(models, "b"))
        await going.wait()
        await leave(wish)
        again = asyncio.ensure_future(used(models, "a"))
        await asyncio.sleep(0)
        assert len(opening.made) == 1, "a comes again when its sessions have been put to sleep, not before"
        may_go.set()
        assert (await again).llm is opening.made[-1]  # type: ignore[comparison-overlap]
        assert opening.made[0].closed == 1
        assert sum(1 - made.closed for made in opening.made) == len(models.loaded) == 1
        await models.close()

    run(main())


def test_a_model_in_use_is_not_unloaded_and_one_that_has_gone_is_left_alone(opening: Opening) -> None:
    async def main() -> None:
        opening.may.set()
        models = models_of(opening)
        async with models.use("a") as model:
            await models.unload(model)
            assert opening.made[0].closed == 0
        await models.unload(model)
        await models.unload(model)
        assert opening.made[0].closed == 1

    run(main())


def test_a_server_that_ends_lets_requests_give_back_what_they_use_but_not_for_ever(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(leaves: bool) -> int:
        models, users = models_of(opening), list[int]()

        async def farewell(model: ServedModel) -> None:
            users.append(model.users)

        models.farewells.append(farewell)
        async with models.use("a"):
            closing = asyncio.ensure_future(models.close())
            await asyncio.sleep(0)
            if not leaves:
                await closing
        await closing
        return users[0]

    async def main() -> None:
        opening.may.set()
        assert await ended(True) == 0
        monkeypatch.setattr("sporelm.serve.models.LEAVING", 0.02)
        assert await ended(False) == 1

    run(main())


def test_a_slow_engine_is_not_taken_for_dead_but_not_for_ever(opening: Opening) -> None:
    stub: Any = Stub()
    engine = stub.llm.engine
    engine.limits = SimpleNamespace(token_budget=512)
    engine.scheduler.pace = Pace()
    model = ServedModel("a", stub, None)  # type: ignore[arg-type]
    model.silent = 5
    assert model.trouble(4) == "the engine of a did not finish a step in 4 s"
    engine.scheduler.pace.token_s = 0.02  # a prompt's step takes ten seconds
    assert model.trouble(4) is None
    engine.scheduler.pace.token_s, model.silent = 1.0, 61
    assert model.trouble(4) == "the engine of a did not finish a step in 60 s"


def test_a_model_that_is_larger_than_the_limit_says_how_much_of_it_is_the_cache(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        opening.may.set()
        models = models_of(opening, model_memory=150_000_000)
        await used(models, "a")
        async with models.use("b"):
            await models.close()

    monkeypatch.setattr(ServedModel, "nbytes", 4_000_000_000)
    monkeypatch.setattr(ServedModel, "kv_bytes", 3_600_000_000)
    monkeypatch.setattr("sporelm.serve.models.LEAVING", 0.0)
    run(main())
    (first, _) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    size = "a takes 4.0 GB, of which 3.6 GB for keys and values"
    remedy = "model_memory is 150.0 MB; give a smaller --kv-memory, or more --model-memory"
    assert first == f"more is loaded than the limit: {size}: {remedy}"
    model = ServedModel("a", Stub(), None)  # type: ignore[arg-type]
    assert too_large(model, 5_000_000_000, 1).startswith(f"{size}; with those in use it is 5.0 GB: ")


def test_troubles_name_no_place(opening: Opening) -> None:
    stub: Any = Stub()
    stub.pump.failure = OSError("cannot read /srv/models/a.gguf")
    model = ServedModel("a", stub, None)  # type: ignore[arg-type]
    assert model.trouble(4) == "the engine of a failed: cannot read a.gguf"
