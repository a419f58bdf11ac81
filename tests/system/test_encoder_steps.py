"""Lists of texts that several ask an encoder for share its steps, and none feels the others."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_files import write_encoder
from families import ENCODERS
from sporelm import LLM, AsyncLLM
from sporelm.engine.encoder_engine import MAX_TEXTS, EncoderEngine
from sporelm.engine.encoder_runner import EncoderText
from sporelm.errors import BackendError

CASES = {case.name: case for case in ENCODERS}
SHORT = [[1 + (3 * number + place) % 40 for place in range(2 + number % 5)] for number in range(64)]
TOGETHER = 64  # tokens of a step


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("steps")
    write_encoder(root / "reader", CASES["bert"])
    return root / "reader"


@pytest.fixture
def llm(model_folder: Path) -> Iterator[LLM]:
    with LLM(model_folder, threads=1, token_budget=TOGETHER) as made:
        yield made


class Steps:
    """The steps of an encoder: the texts of each."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[list[list[int]]] = []
        self.broken = False
        runner: Any = llm.loaded_engine.worker.runner
        embed = runner.embed

        def counted(texts: Sequence[EncoderText]) -> Any:
            self.done.append([list(text.tokens) for text in texts])
            if self.broken:
                raise MemoryError("no memory is left")
            return embed(texts)

        monkeypatch.setattr(runner, "embed", counted)


class TextList:
    """A list of texts that a caller embeds, and the rows that came."""

    def __init__(self, llm: LLM, texts: Sequence[Sequence[int]]) -> None:
        assert isinstance(llm.inference_engine, EncoderEngine)
        self.engine = llm.inference_engine
        self.rows: dict[int, np.ndarray] = {}
        self.steps = self.engine.read([EncoderText(ids) for ids in texts], self.take)
        next(self.steps)

    def take(self, number: int, rows: np.ndarray) -> None:
        assert number not in self.rows
        self.rows[number] = rows.copy()

    def finish(self) -> list[np.ndarray]:
        for _ in self.steps:
            self.engine.step()
        return [self.rows[number] for number in range(len(self.rows))]


def embed_alone(llm: LLM, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [TextList(llm, [ids]).finish()[0] for ids in texts]


def assert_same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_two_lists_take_the_steps_of_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, steps = embed_alone(llm, SHORT), Steps(llm, monkeypatch)
    TextList(llm, SHORT).finish()
    of_one = len(steps.done)
    assert of_one == 5  # of 254 tokens
    halves = TextList(llm, SHORT[:32]), TextList(llm, SHORT[32:])
    assert_same([*halves[0].finish(), *halves[1].finish()], expected)
    assert len(steps.done) == 2 * of_one
    assert steps.done[of_one][:2] == [SHORT[0], SHORT[32]]  # by turns


def test_many_who_ask_for_one_text_each_share_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, steps = embed_alone(llm, SHORT[:15]), Steps(llm, monkeypatch)
    many = [TextList(llm, SHORT), *(TextList(llm, [ids]) for ids in SHORT[:15])]
    found = [each.finish()[0] for each in many[1:]]
    assert_same(found, expected)
    assert len(steps.done) == 1
    assert len(many[0].finish()) == 64


def test_a_long_text_has_its_turn_and_its_own_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [1 + number % 40 for number in range(TOGETHER + 9)]
    expected, steps = embed_alone(llm, [long, *SHORT[:9]]), Steps(llm, monkeypatch)
    short, large = TextList(llm, SHORT[:9] * 12), TextList(llm, [long])
    short.engine.step()
    assert_same(large.finish(), expected[:1])
    assert [long] in steps.done
    assert_same(short.finish(), expected[1:] * 12)
    assert all(len(step) <= MAX_TEXTS for step in steps.done)


def test_who_leaves_is_not_read_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(llm, monkeypatch)
    stays, leaves = TextList(llm, SHORT[:4]), TextList(llm, SHORT[4:8])
    leaves.steps.close()
    stays.finish()
    assert steps.done == [SHORT[:4]]


def test_who_cannot_take_a_vector_is_told_alone(llm: LLM) -> None:
    expected = embed_alone(llm, SHORT[:3])
    first, second, third = (TextList(llm, [ids] * 3) for ids in SHORT[:3])

    def take(number: int, rows: np.ndarray) -> None:
        raise BackendError("an embedding is not a number")

    for request in second.engine._requests:
        if request.on_result == second.take:
            request.on_result = take
    assert_same(first.finish(), expected[:1] * 3)
    with pytest.raises(BackendError, match="is not a number"):
        second.finish()
    assert_same(third.finish(), expected[2:] * 3)
    assert second.engine.is_idle
    assert not second.engine._requests


def test_a_step_that_fails_is_told_to_whose_turn_it_was(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, steps = embed_alone(llm, SHORT[:2]), Steps(llm, monkeypatch)
    first, second = TextList(llm, SHORT[:1]), TextList(llm, SHORT[1:2])
    steps.broken = True
    with pytest.raises(MemoryError):
        first.finish()
    steps.broken = False
    assert_same(second.finish(), expected[1:])


def test_clients_of_a_loop_share_steps(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncLLM(model_folder, threads=1, token_budget=TOGETHER) as llm:
            expected = [await llm.embed(SHORT[at : at + 8], normalize=False) for at in range(0, 64, 8)]
            steps, may, held = Steps(llm.llm, monkeypatch), threading.Event(), threading.Event()

            def hold() -> None:
                held.set()
                assert may.wait(30)

            llm.engine_thread.submit(hold)
            tasks = [asyncio.ensure_future(llm.embed(SHORT[at : at + 8], normalize=False)) for at in range(0, 64, 8)]
            while len(llm.engine_thread._unfinished_tasks) < 8:
                await asyncio.sleep(0.001)
            may.set()
            found = await asyncio.gather(*tasks)
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
            assert len(steps.done) == 4  # of 254 tokens, each as full as it can be

    asyncio.run(asyncio.wait_for(main(), 60))
