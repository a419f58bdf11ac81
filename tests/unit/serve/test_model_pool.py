"""ModelPool: loading and unloading while requests come and are cancelled."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.errors import BackendError
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.model_pool.model_pool import ModelPool
from sporelm.serve.model_pool.served_model import ServedModel, memory_limit_message
from sporelm.serve.serve_config import ModelSpec, ServeConfig


class FakeAsyncLLM:
    """The parts of an `AsyncLLM` that the pool uses."""

    def __init__(self) -> None:
        self.healthy = True
        self.num_closes = 0
        self.failure: BaseException | None = None
        self.llm = SimpleNamespace(notes=[], max_step_seconds=0.0, is_restarting=False)

    def limit_waiting(self, max_waiting: int) -> None:
        assert max_waiting == 256

    def notify_after_steps(self, notify: Callable[[], None]) -> None:
        notify()

    async def run_between_steps(self, call: Callable[[], object]) -> object:
        return call()

    async def close(self) -> None:
        self.num_closes += 1


class FakeOpener:
    """Opens models once `may_open` is set; `has_started` is set when it is called."""

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.has_started = threading.Event()
        self.models: list[FakeAsyncLLM] = []

    def __call__(self, spec: ModelSpec, progress: object) -> Any:
        self.has_started.set()
        assert self.may_open.wait(60)
        self.models.append(FakeAsyncLLM())
        return self.models[-1]


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpener]:
    monkeypatch.setattr(ServedModel, "nbytes", 100)
    fake = FakeOpener()
    yield fake
    fake.may_open.set()


def pool_with(opener: FakeOpener, **fields: Any) -> ModelPool:
    """A pool of two models, "a" and "b"."""
    specs = tuple(ModelSpec(name, f"{name}.gguf") for name in ("a", "b"))
    return ModelPool(ServeConfig(models=specs, **fields), opener)


async def use_once(pool: ModelPool, name: str) -> ServedModel:
    async with pool.use(name) as model:
        return model


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_load_finishes_once_even_if_its_request_is_cancelled(opener: FakeOpener) -> None:
    async def main() -> None:
        pool = pool_with(opener)
        first = asyncio.ensure_future(use_once(pool, "a"))
        await asyncio.to_thread(opener.has_started.wait, 60)
        await cancel(first)
        second = asyncio.ensure_future(use_once(pool, "a"))
        opener.may_open.set()
        model = await second
        assert model.async_llm is opener.models[0]  # type: ignore[comparison-overlap]
        assert len(opener.models) == 1
        assert model.num_users == 0
        await pool.close()
        assert opener.models[0].num_closes == 1

    run(main())


def test_closing_waits_for_a_running_load_and_unloads_the_model(opener: FakeOpener) -> None:
    async def main() -> None:
        pool = pool_with(opener)
        requests = [asyncio.ensure_future(use_once(pool, name)) for name in ("a", "b")]
        await asyncio.to_thread(opener.has_started.wait, 60)
        for task in requests:
            await cancel(task)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0)
        opener.may_open.set()
        await closing
        assert [each.num_closes for each in opener.models] == [1], "the load of b was never started"
        assert not pool.loaded
        with pytest.raises(ApiError, match="shutting down"):
            await use_once(pool, "a")

    run(main())


def test_an_unload_for_memory_finishes_even_if_its_request_is_cancelled(opener: FakeOpener) -> None:
    async def main() -> None:
        opener.may_open.set()
        pool = pool_with(opener, model_memory=150)
        pool.known_bytes["b"] = 100
        is_unloading = asyncio.Event()
        may_unload = asyncio.Event()

        async def on_unload(model: ServedModel) -> None:
            is_unloading.set()
            await may_unload.wait()

        pool.on_unload.append(on_unload)
        await use_once(pool, "a")
        request = asyncio.ensure_future(use_once(pool, "b"))
        await is_unloading.wait()
        await cancel(request)
        again = asyncio.ensure_future(use_once(pool, "a"))
        await asyncio.sleep(0)
        assert len(opener.models) == 1, "a is loaded again only after its sessions have been saved"
        may_unload.set()
        assert (await again).async_llm is opener.models[-1]  # type: ignore[comparison-overlap]
        assert opener.models[0].num_closes == 1
        assert sum(1 - each.num_closes for each in opener.models) == len(pool.loaded) == 1
        await pool.close()

    run(main())


def test_unload_ignores_a_model_in_use_or_already_unloaded(opener: FakeOpener) -> None:
    async def main() -> None:
        opener.may_open.set()
        pool = pool_with(opener)
        async with pool.use("a") as model:
            await pool.unload(model)
            assert opener.models[0].num_closes == 0
        await pool.unload(model)
        await pool.unload(model)
        assert opener.models[0].num_closes == 1

    run(main())


def test_closing_waits_a_limited_time_for_requests_to_release_their_models(
    opener: FakeOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def num_users_at_unload(*, releases: bool) -> int:
        pool = pool_with(opener)
        num_users = list[int]()

        async def on_unload(model: ServedModel) -> None:
            num_users.append(model.num_users)

        pool.on_unload.append(on_unload)
        async with pool.use("a"):
            closing = asyncio.ensure_future(pool.close())
            await asyncio.sleep(0)
            if not releases:
                await closing
        await closing
        return num_users[0]

    async def main() -> None:
        opener.may_open.set()
        assert await num_users_at_unload(releases=True) == 0
        monkeypatch.setattr("sporelm.serve.model_pool.model_pool.RELEASE_SECONDS", 0.02)
        assert await num_users_at_unload(releases=False) == 1

    run(main())


def test_a_slow_engine_counts_as_stalled_later_but_within_a_minute() -> None:
    fake: Any = FakeAsyncLLM()
    model = ServedModel("a", fake, None)  # type: ignore[arg-type]
    model.unresponsive_seconds = 5
    assert model.problem(4) == "the engine of a did not finish a step in 4 s"
    fake.llm.max_step_seconds = 10.0
    assert model.problem(4) is None
    fake.llm.max_step_seconds = 500.0
    model.unresponsive_seconds = 61
    assert model.problem(4) == "the engine of a did not finish a step in 60 s"


def test_ranks_that_start_again_do_not_count_as_stalled(opener: FakeOpener) -> None:
    async def main() -> None:
        opener.may_open.set()
        pool = pool_with(opener)
        await use_once(pool, "a")
        await use_once(pool, "b")
        first, second = pool.loaded.values()
        assert (pool.is_restarting, pool.problems()) == (False, [])
        first.async_llm.llm.is_restarting = True  # type: ignore[misc]
        assert pool.is_restarting
        assert pool.problems() == ["the ranks of a are being started again: requests wait until then"]
        second.async_llm.failure = BackendError("lost")  # type: ignore[misc]
        assert not pool.is_restarting, "one that failed counts more"
        assert len(pool.problems()) == 2
        await pool.close()

    run(main())


def test_a_model_beyond_the_memory_limit_is_reported_with_its_cache_size(
    opener: FakeOpener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        opener.may_open.set()
        pool = pool_with(opener, model_memory=150_000_000)
        await use_once(pool, "a")
        async with pool.use("b"):
            await pool.close()

    monkeypatch.setattr(ServedModel, "nbytes", 4_000_000_000)
    monkeypatch.setattr(ServedModel, "kv_bytes", 3_600_000_000)
    monkeypatch.setattr("sporelm.serve.model_pool.model_pool.RELEASE_SECONDS", 0.0)
    run(main())
    (first, _) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    size = "a takes 4.0 GB, including 3.6 GB for keys and values"
    remedy = "model_memory is 150.0 MB; give a smaller --kv-memory, or more --model-memory"
    assert first == f"loaded models exceed the limit: {size}: {remedy}"
    model = ServedModel("a", FakeAsyncLLM(), None)  # type: ignore[arg-type]
    assert memory_limit_message(model, 5_000_000_000, 1).startswith(f"{size}; with those in use it is 5.0 GB: ")


def test_idle_models_make_room_before_a_model_is_split(opener: FakeOpener, caplog: pytest.LogCaptureFixture) -> None:
    line = "device split: 1 of 2 layers (1 to 1) on torch, the rest on cpu"

    async def main(**engine: Any) -> list[str]:
        def open_split(spec: Any, progress: Any) -> Any:
            if spec.name == "b":
                pool.announce_split("b", line)
            return opener(spec, progress)

        opener.may_open.set()
        pool = pool_with(opener, engine=engine)
        pool._open_model = open_split
        async with pool.use("a"):
            await use_once(pool, "b")  # a is in use, and cannot make room
            assert set(pool.loaded) == {"a", "b"}
            await pool.unload(pool.loaded["b"])
        await use_once(pool, "b")
        loaded = list(pool.loaded)
        await pool.close()
        return loaded

    assert asyncio.run(main()) == ["b"]
    assert [record.getMessage() for record in caplog.records if "split" in record.getMessage()] == [f"b: {line}"] * 2
    assert asyncio.run(main(device_memory="1G")) == ["a", "b"], "the split was asked for"


def test_problems_contain_no_paths() -> None:
    fake: Any = FakeAsyncLLM()
    fake.failure = OSError("cannot read /srv/models/a.gguf")
    model = ServedModel("a", fake, None)  # type: ignore[arg-type]
    assert model.problem(4) == "the engine of a failed: cannot read a.gguf"


def test_a_loaded_model_is_exempt_from_garbage_collection_until_one_is_unloaded(opener: FakeOpener) -> None:
    async def load_and_unload() -> None:
        pool = pool_with(opener)
        opener.may_open.set()
        model = await use_once(pool, "a")
        assert gc.get_freeze_count() > 0
        await pool.unload(model)
        assert gc.get_freeze_count() == 0

    run(load_and_unload())
