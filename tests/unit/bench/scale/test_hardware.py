"""Links, collectives and presets."""

import pytest

from sporelm.bench.scale.hardware import LINKS, MACHINES, Link, find_preset
from sporelm.errors import RequestError

LINK = Link("test", 1e-5, 1e9)


def test_a_message_takes_latency_and_bytes() -> None:
    assert LINK.send(1_000_000) == pytest.approx(1e-5 + 1e-3)


def test_one_rank_exchanges_nothing() -> None:
    assert LINK.all_reduce(1e6, 1) == 0
    assert LINK.all_gather(1e6, 1) == 0


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("gather", 3 * (1e-5 + 1e-3)),
        ("ring", 6 * (1e-5 + 0.25e-3)),
        ("tree", 2 * (1e-5 + 1e-3)),
        ("best", 6 * (1e-5 + 0.25e-3)),
    ],
)
def test_all_reduce_of_a_megabyte_over_four_ranks(algorithm, seconds) -> None:
    assert LINK.all_reduce(1e6, 4, algorithm) == pytest.approx(seconds)


def test_small_sums_take_the_tree() -> None:
    assert LINK.all_reduce(100, 8) == LINK.all_reduce(100, 8, "tree") < LINK.all_reduce(100, 8, "ring")


def test_each_collective_has_a_base() -> None:
    slower = Link("test", 1e-5, 1e9, 5e-6)
    for algorithm in ("gather", "ring", "tree"):
        assert slower.all_reduce(1e6, 4, algorithm) - LINK.all_reduce(1e6, 4, algorithm) == pytest.approx(5e-6)


def test_presets_say_where_they_come_from() -> None:
    assert all(link.source for link in LINKS.values())
    assert all(machine.processor.source for machine in MACHINES.values())


def test_a_measured_link_replaces_all_links() -> None:
    machine = MACHINES["8xh100"].with_link(LINK)
    assert machine.link is machine.network is LINK


def test_errors_name_what_is_allowed() -> None:
    with pytest.raises(RequestError, match=r"got 'x'; allowed nvlink4"):
        find_preset("link", "x", LINKS)
    with pytest.raises(RequestError, match=r"got int3; allowed f32, f16, int8"):
        MACHINES["8xh100"].processor.peak("int3")
