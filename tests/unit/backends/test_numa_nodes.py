"""NUMA nodes are read from the system, and ranks get cores of one node."""

from pathlib import Path

import pytest

from sporelm.backends.numa_nodes import (
    NumaNode,
    assign_cores,
    format_core_list,
    parse_core_list,
    read_numa_nodes,
    share_threads,
)

TWO = [NumaNode(0, (0, 1, 4, 5)), NumaNode(1, (2, 3, 6, 7))]


def write_node(root: Path, number: int, cores: str, kilobytes: int) -> None:
    folder = root / "sys/devices/system/node" / f"node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cores}\n")
    (folder / "meminfo").write_text(f"Node {number} MemTotal:       {kilobytes} kB\nNode {number} MemFree: 1 kB\n")


def test_nodes_are_read(tmp_path: Path) -> None:
    assert read_numa_nodes(tmp_path) == []
    write_node(tmp_path, 1, "2-3,6-7", 1000)
    write_node(tmp_path, 0, "0-1,4-5", 2000)
    write_node(tmp_path, 2, "", 3000)  # memory without cores
    (tmp_path / "sys/devices/system/node/nodeX").mkdir()
    assert read_numa_nodes(tmp_path) == [
        NumaNode(0, (0, 1, 4, 5), 2000 * 1024), NumaNode(1, (2, 3, 6, 7), 1000 * 1024)
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "1,3,5-7"])
def test_core_lists_are_read_and_written(text: str) -> None:
    assert format_core_list(parse_core_list(text)) == text


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-99999999", "0-9999999999"])
def test_other_texts_have_no_cores(text: str) -> None:
    assert parse_core_list(text) == ()


def test_threads_are_shared() -> None:
    assert share_threads(8, 2) == [4, 4]
    assert share_threads(7, 3) == [2, 2, 3]
    assert share_threads(2, 4) == [1, 1, 1, 1]


def test_one_rank_a_node() -> None:
    assert assign_cores(2, 8, TWO, range(8)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert assign_cores(2, 2, TWO, range(8)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert assign_cores(4, 8, TWO, range(8)) == [[0, 1], [4, 5], [2, 3], [6, 7]]


def test_ranks_get_cores_of_their_own_without_nodes() -> None:
    assert assign_cores(2, 2, [], range(2)) == [[0], [1]]
    assert assign_cores(2, 3, [NumaNode(0, (0, 1, 2))], (0, 1, 2)) == [[0], [1, 2]]
    assert assign_cores(3, 3, TWO, (0, 2, 3)) == [[0], [2], [3]]


def test_ranks_are_not_pinned_if_cores_are_few() -> None:
    assert assign_cores(4, 4, [NumaNode(0, (0, 1))], (0, 1)) == [[], [], [], []]
    assert assign_cores(1, 2, TWO, range(8)) == [[]]
