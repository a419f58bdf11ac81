"""Cases of rows of pictures."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

SHAPES = ((1, 1), (2, 16), (7, 33), (33, 320))
PICTURE_ROWS = 5


def placed(on: On, name: str, tokens: int, width: int, blocks: int, block: int, share: float) -> Any:
    """Put rows of pictures at about a `share` of the places."""
    rows = on.random.integers(0, PICTURE_ROWS, tokens)
    rows[on.random.random(tokens) >= share] = -1
    values = on.rows(PICTURE_ROWS, width * blocks)
    return ops.ALL[name](on.rows(tokens, width), values, on.ints(rows), first=block * width)


def placed_before_pictures(on: On, name: str) -> Any:
    """A step of text only."""
    return ops.ALL[name](on.rows(3, 33), on.tensor(np.zeros((0, 33), np.float32)), on.ints([-1, -1, -1]))


def cases() -> Iterator[Case]:
    for name in ("replace_rows", "add_rows"):
        for tokens, width in SHAPES:
            for share in (0.0, 0.6, 1.0):
                title = f"{tokens}x{width} {share:.0%} of rows"
                yield case(name, title, placed, name, tokens, width, 1, 0, share, exact=True)
            for block in (1, 2):
                title = f"{tokens}x{width} block {block} of three"
                yield case(name, title, placed, name, tokens, width, 3, block, 0.6, exact=True)
        yield case(name, "no pictures", placed_before_pictures, name, exact=True)
