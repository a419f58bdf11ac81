"""Threads for renderings, and others for pictures."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.api.image_budget import IsCancelled
from sporelm.api.isolation import MAX_IMAGE_THREADS, Isolation, take_images_isolated
from sporelm.errors import BackendError

SECONDS = 30.0  # that a waiting thread waits at most


def make_isolation() -> Isolation:
    tokenizer: Any = SimpleNamespace()
    return Isolation(tokenizer)


def test_slow_pictures_do_not_delay_renderings() -> None:
    isolation, may_end, began = make_isolation(), threading.Event(), threading.Semaphore(0)

    def read_slowly(is_cancelled: IsCancelled) -> bool:
        began.release()
        return may_end.wait(SECONDS)

    async def run() -> None:
        pictures = [asyncio.ensure_future(isolation.read_images(read_slowly)) for _ in range(MAX_IMAGE_THREADS + 2)]
        for _ in range(MAX_IMAGE_THREADS):
            assert await asyncio.to_thread(began.acquire, timeout=SECONDS)
        async with asyncio.timeout(SECONDS / 2):
            assert await isolation.render(lambda: "rendered", large=True) == "rendered"
        assert not any(each.done() for each in pictures)
        may_end.set()
        assert all(await asyncio.gather(*pictures))

    try:
        asyncio.run(run())
    finally:
        may_end.set()
        isolation.close()


@pytest.mark.parametrize("is_isolated", [True, False])
def test_reading_learns_that_the_client_has_left(is_isolated: bool) -> None:
    isolation, began, ended = make_isolation(), threading.Event(), threading.Event()
    answers = []

    def take_images(messages: Any, tenant: str, is_cancelled: IsCancelled) -> None:
        assert (len(messages), tenant) == (1, "a")
        answers.append(is_cancelled())
        began.set()
        for _ in range(int(SECONDS * 100)):
            if is_cancelled():
                break
            threading.Event().wait(0.01)
        answers.append(is_cancelled())
        ended.set()

    async def run() -> None:
        messages = [{"role": "user", "content": [{"type": "image", "image": b"x"}]}]
        llm: Any = SimpleNamespace(take_images=take_images, isolation=isolation if is_isolated else None)
        task = asyncio.ensure_future(take_images_isolated(llm, messages, "a"))
        assert await asyncio.to_thread(began.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, SECONDS)

    try:
        asyncio.run(run())
    finally:
        isolation.close()
    assert answers == [False, True]


def test_a_closed_model_reads_no_pictures() -> None:
    isolation = make_isolation()
    isolation.close()
    with pytest.raises(BackendError, match="the model was closed"):
        asyncio.run(isolation.read_images(lambda is_cancelled: None))
