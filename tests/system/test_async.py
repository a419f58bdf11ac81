"""Many answers at once from one event loop: the same as alone, cancelled at any moment, none felt by another."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sporelm import LLM, AsyncLLM, Completion, Piece, SamplingParams
from sporelm.engine import ModelOutput, Step
from sporelm.errors import BackendError, ContextOverflow, QueueFull, RequestError
from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
WILD = SamplingParams(max_tokens=24, temperature=1.0, seed=5)
ENDLESS = SamplingParams(max_tokens=10**7, temperature=0.0, ignore_eos=True, roll=True)  # until it is cancelled
PROMPTS = ["Once upon a time", "The dog ran", "Lily", "A big red ball fell", "Tom said", "It was", "The sun", "Mom"]


@pytest.fixture(scope="module")
def sync_llm(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1) as made:
        yield made


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """A coroutine to its end, or a failure if it hangs."""

    async def limited() -> Any:
        return await asyncio.wait_for(work, 120)

    return asyncio.run(limited())


async def all_of(llm: AsyncLLM, prompt: str | list[int], params: SamplingParams) -> list[Piece]:
    return [piece async for piece in llm.stream(prompt, params)]


def test_many_at_once_are_answered_as_alone(story: Path, sync_llm: LLM) -> None:
    async def together() -> list[Completion]:
        async with AsyncLLM(story, threads=2, max_batch=4) as llm:
            return await asyncio.gather(*(llm.generate(prompt, WILD) for prompt in PROMPTS))

    found = run(together())
    assert [answer.token_ids for answer in found] == [each.token_ids for each in sync_llm.generate(PROMPTS, WILD)]


def test_prompts_are_read_beside_the_event_loop(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncLLM(story, threads=1) as llm:
            read, where = llm.llm.prompt_ids, set[threading.Thread]()

            def noted(prompt: Any) -> list[int]:
                where.add(threading.current_thread())
                return read(prompt)

            monkeypatch.setattr(llm.llm, "prompt_ids", noted)
            await llm.generate("Lily", SamplingParams(max_tokens=1))
            await all_of(llm, "Lily", SamplingParams(max_tokens=1))
            await llm.embed("Lily")
            assert where
            assert threading.current_thread() not in where

    run(main())


def test_pieces_of_streams_side_by_side_join_to_the_texts(story: Path, sync_llm: LLM) -> None:
    async def streams() -> list[list[Piece]]:
        async with AsyncLLM(story, threads=1) as llm:
            return await asyncio.gather(*(all_of(llm, prompt, GREEDY) for prompt in PROMPTS[:3]))

    for pieces, wanted in zip(run(streams()), sync_llm.generate(PROMPTS[:3], GREEDY), strict=True):
        assert "".join(piece.text for piece in pieces) == wanted.text
        assert pieces[-1].completion is not None
        assert pieces[-1].completion.token_ids == wanted.token_ids


def test_leaving_a_stream_or_its_task_cancels_that_request_alone(story: Path, sync_llm: LLM) -> None:
    async def leave() -> tuple[Completion, int]:
        async with AsyncLLM(story, threads=1) as llm:
            other = asyncio.ensure_future(llm.generate(PROMPTS[0], GREEDY))
            async with aclosing(llm.stream(PROMPTS[1], ENDLESS)) as pieces:
                async for _ in pieces:
                    break
            task = asyncio.ensure_future(llm.generate(PROMPTS[2], ENDLESS))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer = await other
            while not llm.llm.engine.scheduler.is_idle:
                await asyncio.sleep(0.001)
            await llm.run_between_steps(llm.llm.engine.check_integrity)
            return answer, len(llm.llm.engine.kv_cache.sequences)

    answer, sequences = run(leave())
    assert answer.token_ids == sync_llm.generate(PROMPTS[0], GREEDY)[0].token_ids
    assert sequences == 0


def test_the_loop_goes_on_while_a_step_runs(story: Path) -> None:
    async def beats() -> int:
        async with AsyncLLM(story, threads=1) as llm:
            entered, leave = threading.Event(), threading.Event()
            step = llm.llm.engine.runner.run

            def slow(what: Step) -> ModelOutput:
                entered.set()
                assert leave.wait(60)
                return step(what)

            llm.llm.engine.runner.run = slow  # type: ignore[method-assign]
            first = asyncio.ensure_future(llm.generate(PROMPTS[0], GREEDY))
            while not entered.is_set():
                await asyncio.sleep(0.001)
            # The step stands still: others are taken, and cancelled, without waiting for it.
            second = asyncio.ensure_future(llm.generate(PROMPTS[1], GREEDY))
            third = asyncio.ensure_future(llm.generate(PROMPTS[2], ENDLESS))
            await asyncio.sleep(0.01)
            third.cancel()
            await asyncio.gather(third, return_exceptions=True)
            assert not first.done()
            leave.set()
            said = len((await first).token_ids) + len((await second).token_ids)
            await llm.run_between_steps(lambda: None)
            assert llm.llm.engine.scheduler.is_idle, "who has left before he was added is added and stays"
            return said

    assert run(beats()) > 20


def test_the_loop_goes_on_while_prompts_are_read_and_while_it_closes(
    story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[str, int]] = []

    def noting(name: str, what: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            threads.append((name, threading.get_ident()))
            return what(*args, **options)

        return noted

    async def use() -> None:
        async with AsyncLLM(story, threads=1) as llm:
            for name in ("prompt_ids", "chat_ids", "close"):
                monkeypatch.setattr(llm.llm, name, noting(name, getattr(llm.llm, name)))
            monkeypatch.setattr(
                llm.llm,
                "render_taken",
                noting("render", lambda taken: RenderedPrompt(((taken.messages[0]["content"], False),))),
            )
            await all_of(llm, PROMPTS[0], GREEDY)
            await llm.chat([{"role": "user", "content": "Hi"}], GREEDY)

    run(use())
    assert {name for name, _ in threads} == {"prompt_ids", "render", "chat_ids", "close"}
    assert threading.get_ident() not in {number for _, number in threads}


def test_what_cannot_be_served_is_refused_and_the_others_go_on(story: Path) -> None:
    async def refused() -> Completion:
        async with AsyncLLM(story, threads=1, max_context=64) as llm:
            good = asyncio.ensure_future(llm.generate(PROMPTS[0], GREEDY))
            with pytest.raises(ContextOverflow):
                await llm.generate([5] * 65, GREEDY)
            with pytest.raises(RequestError, match="token 99999"):
                await all_of(llm, [99999], GREEDY)
            with pytest.raises(RequestError, match="a stream has one completion"):
                llm.stream(PROMPTS[0], SamplingParams(n=2))
            return await good

    assert len(run(refused()).token_ids) == 24


def test_a_full_queue_is_said(story: Path) -> None:
    async def crowd() -> list[Any]:
        async with AsyncLLM(story, threads=1, max_batch=1) as llm:
            llm.llm.engine.scheduler.waiting.limit = 2
            asked, all_asked = list[object](), threading.Event()
            run_between_steps, step = llm.run_between_steps, llm.llm.engine.runner.run

            def noted(what: Callable[[], Any]) -> Any:
                asked.append(what)
                if len(asked) == len(PROMPTS):
                    all_asked.set()
                return run_between_steps(what)

            def late(what: Step) -> ModelOutput:
                assert all_asked.wait(60)
                return step(what)

            llm.run_between_steps, llm.llm.engine.runner.run = noted, late  # type: ignore[method-assign]
            return await asyncio.gather(*(llm.generate(each, GREEDY) for each in PROMPTS), return_exceptions=True)

    found = run(crowd())
    assert any(isinstance(answer, QueueFull) for answer in found)
    assert all(isinstance(answer, Completion | QueueFull) for answer in found)
    assert any(isinstance(answer, Completion) for answer in found)


def test_several_answers_and_stop_texts_work_as_elsewhere(story: Path, sync_llm: LLM) -> None:
    several = SamplingParams(max_tokens=10, temperature=1.0, seed=1, n=3)
    stopping = SamplingParams(max_tokens=60, temperature=0.0, stop=["."])

    async def both() -> tuple[Completion, Completion]:
        async with AsyncLLM(story, threads=1) as llm:
            return await asyncio.gather(llm.generate(PROMPTS[0], several), llm.generate(PROMPTS[1], stopping))

    first, second = run(both())
    wanted = sync_llm.generate(PROMPTS[0], several)[0]
    assert [each.text for each in first.alternatives] == [each.text for each in wanted.alternatives]
    assert (second.text, second.finish_reason) == (sync_llm.generate(PROMPTS[1], stopping)[0].text, "stop")


def test_a_failing_back_end_is_told_to_every_caller_and_nothing_hangs(story: Path) -> None:
    async def fails() -> list[Any]:
        async with AsyncLLM(story, threads=1) as llm:
            count = 0
            step = llm.llm.engine.runner.run

            def failing(what: Step) -> ModelOutput:
                nonlocal count
                count += 1
                if count > 3:
                    raise BackendError("the device is gone")
                return step(what)

            llm.llm.engine.runner.run = failing  # type: ignore[method-assign]
            found = await asyncio.gather(*(llm.generate(each, GREEDY) for each in PROMPTS[:3]), return_exceptions=True)
            assert not llm.healthy
            with pytest.raises(BackendError, match="the device is gone"):
                await llm.generate(PROMPTS[0], GREEDY)
            return found

    for error in run(fails()):
        assert isinstance(error, BackendError)
        assert "failed: the device is gone; open the model again" in str(error)


def test_closing_ends_what_runs(story: Path) -> None:
    async def close() -> Any:
        llm = AsyncLLM(story, threads=1)
        task = asyncio.ensure_future(llm.generate(PROMPTS[0], ENDLESS))
        while not llm.metrics.generation_tokens:
            await asyncio.sleep(0.001)
        await llm.close()
        await llm.close()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(RequestError, match="closed"):
            await llm.generate(PROMPTS[0])
        return found

    found = run(close())
    assert isinstance(found, BackendError | RequestError) or found.finish_reason == "cancelled"


def test_calls_from_other_threads_share_the_steps(story: Path, sync_llm: LLM) -> None:
    async def both() -> tuple[Completion, list[Completion]]:
        async with AsyncLLM(story, threads=1) as llm:
            direct = asyncio.to_thread(llm.llm.generate, PROMPTS[3:5], WILD)
            return await asyncio.gather(llm.generate(PROMPTS[0], WILD), direct)

    first, others = run(both())
    wanted = sync_llm.generate([PROMPTS[0], *PROMPTS[3:5]], WILD)
    assert [answer.token_ids for answer in (first, *others)] == [answer.token_ids for answer in wanted]
