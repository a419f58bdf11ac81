"""Several answers side by side."""

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from sporelm.api.completion import Piece
from sporelm.errors import BackendError
from sporelm.serve.chat.answer_stream import merge_streams


class Stream:
    """An answer of a number of pieces, which then fails or ends."""

    def __init__(self, pieces: int, *, fails: bool) -> None:
        self.num_left, self.fails = pieces, fails

    async def next_piece(self) -> Piece:
        await asyncio.sleep(0)
        self.num_left -= 1
        if self.num_left < 0 and self.fails:
            raise BackendError("the engine failed")
        return Piece("x", [1], "stop" if self.num_left < 0 else None)


def test_pieces_of_all_streams_are_merged() -> None:
    async def main() -> list[int]:
        streams: list[Any] = [Stream(count, fails=False) for count in (0, 3, 1)]
        return [number async for number, _ in merge_streams(streams)]

    found = asyncio.run(main())
    assert [found.count(number) for number in range(3)] == [1, 4, 2]


def test_one_of_several_errors_is_raised_and_no_task_remains() -> None:
    stray: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: stray.append(told))
        streams: list[Any] = [Stream(1, fails=True) for _ in range(4)]
        async with aclosing(merge_streams(streams)) as pieces:
            with pytest.raises(BackendError, match="the engine failed"):
                async for _ in pieces:
                    pass
        assert len(asyncio.all_tasks()) == 1
        del pieces
        gc.collect()

    asyncio.run(main())
    assert not stray
