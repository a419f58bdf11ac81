"""How ranks are numbered, and what does not fit together."""

from typing import Any

import pytest

from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.errors import RequestError


def test_ranks_are_numbered_stage_by_stage() -> None:
    parallel = ParallelConfig(tp=2, pp=3)
    assert parallel.size == 6
    assert [parallel.stage(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [parallel.tp_rank(rank) for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    assert [parallel.share(rank) for rank in range(2)] == [(0, 1, 2), (1, 1, 2)]
    assert parallel.layer_ranges(7) == ((0, 2), (2, 4), (4, 7))


def test_uneven_shares_and_layers() -> None:
    parallel = ParallelConfig(tp=3, pp=2, shares=(1, 1, 2), stage_layers=(5, 2))
    assert [parallel.share(rank) for rank in range(3)] == [(0, 1, 4), (1, 1, 4), (2, 2, 4)]
    assert parallel.layer_ranges(7) == ((0, 5), (5, 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 0}, r"the option tp: out of range \(got 0; allowed 1 to 4096\)"),
        ({"pp": 5000}, "the option pp: out of range"),
        ({"tp": 2, "shares": (1,)}, "the option tp_shares: must be one positive number for each rank"),
        ({"tp": 2, "shares": (1, 0)}, "the option tp_shares"),
        ({"pp": 2, "stage_layers": (1, 2, 3)}, "the option pp_layers: must be the number of layers of each stage"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ParallelConfig(**options)


def test_stages_must_fit_the_layers() -> None:
    with pytest.raises(RequestError, match=r"more stages than layers \(got 4; allowed 1 to 3\)"):
        ParallelConfig(pp=4).layer_ranges(3)
    with pytest.raises(RequestError, match=r"must add up to the layers of the model \(got \[1, 2\], 3 in all; the mod"):
        ParallelConfig(pp=2, stage_layers=(1, 2)).layer_ranges(4)
