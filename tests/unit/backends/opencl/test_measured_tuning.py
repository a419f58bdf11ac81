"""The file of measured numbers: saved per device, read back, ignored if it is invalid or of other kernels."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm.backends.opencl import measured_tuning
from sporelm.backends.opencl.device_tuning import CPU_DEFAULTS, GPU_DEFAULTS, GROUPS, default_tuning, fit_groups
from sporelm.backends.opencl.measured_tuning import LIST_KEY, save_tuning, tuning_in_use
from unit.backends.opencl.stand_in_device import stand_in

DEVICE, OTHER = stand_in(0, "gpu", "First"), stand_in(1, "cpu", "Second")
MEASURED = replace(GPU_DEFAULTS, few_rows=8, tile_group=(8, 16))


def test_defaults_are_those_of_the_kind(tmp_path: Path) -> None:
    assert default_tuning(DEVICE) == GPU_DEFAULTS
    active = tuning_in_use(OTHER, tmp_path / "missing.json")
    assert active.tuning == CPU_DEFAULTS
    assert active.source == (
        "defaults for a cpu; run 'spore bench tune --backend opencl --device 1' to measure this machine"
    )


def test_groups_and_slabs_fit_the_device() -> None:
    """Groups stay powers of two, as kernels halve them."""
    small = stand_in(0, "gpu", "Small", max_work_group_size=24, max_work_item_sizes=(24, 4, 1))
    fitted = fit_groups(GPU_DEFAULTS, small)
    assert [getattr(fitted, name) for name in GROUPS] == [16, 16, 16, 16]
    assert fitted.tile_group == (4, 4)
    assert fit_groups(GPU_DEFAULTS, DEVICE) == GPU_DEFAULTS
    narrow = stand_in(0, "gpu", "Narrow", max_mem_alloc_size=64 << 20)
    assert fit_groups(GPU_DEFAULTS, narrow).slab_bytes == 16 << 20


def test_each_device_has_its_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tuning.json"
    save_tuning(path, DEVICE, MEASURED)
    save_tuning(path, OTHER, CPU_DEFAULTS)
    active = tuning_in_use(DEVICE, path)
    assert active.tuning == MEASURED
    assert active.source.startswith("measured here ")
    assert tuning_in_use(OTHER, path).tuning == CPU_DEFAULTS
    assert [each.name for each in path.parent.iterdir()] == ["tuning.json"]


def test_numbers_of_other_kernels_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.json"
    save_tuning(path, DEVICE, MEASURED)
    monkeypatch.setattr(measured_tuning, "kernels_digest", lambda: "others")
    active = tuning_in_use(DEVICE, path)
    assert active.tuning == GPU_DEFAULTS
    assert "the kernels have changed" in active.source


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tuning": {"few_rows": 0}}, "few_rows is not valid"),
        ({"tuning": {"few_rows": "8"}}, "few_rows is not valid"),
        ({"tuning": {"tile_group": [4]}}, "tile_group is not valid"),
        ({"tuning": {"tile_group": [4, 6]}}, "tile_group is not valid"),
        ({"tuning": {"row_group": 3}}, "row_group is not valid"),
        ({"tuning": {"few_group": 96}}, "few_group is not valid"),
        ({"tuning": {"attention_group": 2048}}, "attention_group is not valid"),
        ({"tuning": {"vector": 3}}, "vector is not valid"),
        ({"tuning": {"tile_tokens": 65}}, "tile_tokens is not valid"),
        ({"tuning": {"slab_bytes": 0}}, "slab_bytes is not valid"),
        ({"tuning": {"half_products": 2}}, "half_products is not valid"),
        ({"tuning": {"unknown": 4}}, "unknown names"),
        ({"device": "a\nb"}, "device is not a printable string"),
        ({"more": 1}, "must have exactly"),
    ],
)
def test_an_invalid_file_is_ignored_with_the_reason(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = tmp_path / "tuning.json"
    entry = {"device": "First", "driver": "1", "kernels": "k", "measured": "2026-11-27", "tuning": asdict(MEASURED)}
    path.write_text(json.dumps({LIST_KEY: [entry | change]}), "utf-8")
    active = tuning_in_use(DEVICE, path)
    assert active.tuning == GPU_DEFAULTS
    assert reason in active.source
    save_tuning(path, DEVICE, MEASURED)
    assert tuning_in_use(DEVICE, path).tuning == MEASURED


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sporelm opencl tuning": 3}', "[" * 10_000])
def test_a_file_of_something_else_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(content, "utf-8")
    assert tuning_in_use(DEVICE, path).tuning == GPU_DEFAULTS
