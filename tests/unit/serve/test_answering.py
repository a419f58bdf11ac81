"""Several answers side by side."""

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from sporelm.api.completion import Piece
from sporelm.errors import BackendError
from sporelm.serve.answering import merged


class Stream:
    """An answer that says so many pieces, and then fails or ends."""

    def __init__(self, pieces: int, *, fails: bool) -> None:
        self.left, self.fails = pieces, fails

    async def next(self) -> Piece:
        await asyncio.sleep(0)
        self.left -= 1
        if self.left < 0 and self.fails:
            raise BackendError("the engine failed")
        return Piece("x", [1], "stop" if self.left < 0 else None)


def test_pieces_come_from_all_until_each_has_ended() -> None:
    async def main() -> list[int]:
        streams: list[Any] = [Stream(count, fails=False) for count in (0, 3, 1)]
        return [number async for number, _ in merged(streams)]

    found = asyncio.run(main())
    assert [found.count(number) for number in range(3)] == [1, 4, 2]


def test_of_many_that_fail_together_one_is_told_and_none_is_left_over() -> None:
    stray: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: stray.append(told))
        streams: list[Any] = [Stream(1, fails=True) for _ in range(4)]
        async with aclosing(merged(streams)) as pieces:
            with pytest.raises(BackendError, match="the engine failed"):
                async for _ in pieces:
                    pass
        assert len(asyncio.all_tasks()) == 1
        del pieces
        gc.collect()

    asyncio.run(main())
    assert not stray
