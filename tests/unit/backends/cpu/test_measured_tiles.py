"""Tiles: what is shipped, the file of those measured here, and that kernels and their keys follow them."""

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm import ops, settings
from sporelm.backends.cpu import CpuBackend, targets
from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, linear_few, linear_one
from sporelm.backends.cpu.targets import tiles as tiles_module
from sporelm.backends.cpu.targets.cpu_target import CpuTarget
from sporelm.backends.cpu.targets.tiles import (
    DEFAULT_PREFETCH_BYTES,
    FAMILIES,
    FEW_TOKENS,
    Tiles,
    parse_tiles,
    shipped_tiles,
)
from sporelm.backends.cpu.tuning import measured_tiles
from sporelm.backends.cpu.tuning.measured_tiles import LIST_KEY, save_tiles, tiles_in_use
from sporelm.backends.file_cache import ObjectCache
from sporelm.backends.log_once import warn_once
from sporelm.backends.measurement_file import BACKUP_SUFFIX, MAX_FILE_BYTES
from sporelm.quant import FORMATS as QUANT_FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.settings import Setting


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of measured tiles, in a folder that does not exist yet."""
    file = tmp_path / "user" / "tiles.json"
    use(monkeypatch, str(file))
    warn_once.cache_clear()
    return file


def use(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(settings, "CPU_TILES", Setting("SPORE_CPU_TILES", lambda: value, ""))


def other(tiles: Tiles) -> Tiles:
    """Return tiles that differ in every part that is measured."""
    rows = 3 if tiles.attention_rows != 3 else 2
    few = dict.fromkeys((*FAMILIES, "Q4_K"), (2, 3))
    many = (("block", (2, 1)), ("super", (2, 1)), ("float", (2, 1)))
    return Tiles(rows, tuple(few.items()), many, prefetch_bytes=tiles.prefetch_bytes)


@pytest.mark.parametrize("name", json.loads((Path(tiles_module.__file__).parent / "tiles.json").read_text("utf-8")))
def test_shipped_tiles_are_of_every_family(name: str) -> None:
    tiles = shipped_tiles(name)
    for kind in FORMATS.values():
        (panels, tokens), (many_panels, many_tokens) = tiles.few_of(kind), tiles.many_of(kind)  # type: ignore[arg-type]
        assert min(panels, tokens, many_tokens) >= 1
        assert many_panels % 2 == 0, "gate and up share a tile"
    assert parse_tiles(json.loads(json.dumps(tiles.as_json()))) == tiles
    assert {name for name, _ in (*tiles.few, *tiles.many)} <= {*FAMILIES, *FORMATS}


def test_few_tokens_are_of_a_format_its_family_or_what_is_usual() -> None:
    tiles = parse_tiles(GOOD | {"few_tokens": {"Q6_K": 56, "super": 120}})
    formats = (FORMATS["Q6_K"], FORMATS["Q4_K"], FORMATS["Q4_0"])
    assert [tiles.few_tokens_of(kind) for kind in formats] == [56, 120, FEW_TOKENS]  # type: ignore[arg-type]
    assert parse_tiles(tiles.as_json()) == tiles


def test_formats_of_16_bits_are_kept() -> None:
    tiles = parse_tiles(GOOD | {"wide": ["Q8_0", "IQ4_NL"]})
    assert tiles.wide == ("Q8_0", "IQ4_NL")
    assert parse_tiles(json.loads(json.dumps(tiles.as_json()))) == tiles


def test_prefetch_distance_falls_back_from_format_to_family_to_default() -> None:
    tiles = parse_tiles(GOOD | {"prefetch_bytes": {"Q6_K": 0, "super": 8192}})
    formats = (FORMATS["Q6_K"], FORMATS["Q4_K"], FORMATS["Q4_0"])
    assert [tiles.prefetch_bytes_of(kind) for kind in formats] == [0, 8192, DEFAULT_PREFETCH_BYTES]  # type: ignore[arg-type]
    assert parse_tiles(json.loads(json.dumps(tiles.as_json()))) == tiles


def test_shipped_tiles_have_overrides_per_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, own = shipped_tiles("avx512-vnni"), shipped_tiles("avx512-vnni", "znver4")
    assert own == replace(usual, prefetch_bytes=own.prefetch_bytes)
    assert (usual.prefetch_bytes_of(FORMATS["Q6_K"]), own.prefetch_bytes_of(FORMATS["Q6_K"])) == (32768, 0)  # type: ignore[arg-type]
    assert shipped_tiles("avx512-vnni", "znver5") == usual
    use(monkeypatch, "shipped")
    monkeypatch.setattr(measured_tiles.llvm, "get_host_cpu_name", lambda: "znver4")
    assert tiles_in_use(replace(targets.select_target("generic"), name="avx512-vnni")).tiles == own


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_prefetch_distance_does_not_change_results(path: Path, name: str) -> None:
    rows, width, form = 40, 768, QUANT_FORMATS[name]
    random = np.random.default_rng(5)
    blocks = random.integers(0, 60, (rows * width // form.values, form.nbytes), np.uint8)
    x = random.standard_normal((1, width), np.float32)
    target = targets.select_target(None)
    results, prefetches = [], []
    for distance in (0, 1024, 32768):
        save_tiles(path, target, replace(target.tiles, prefetch_bytes=(("block", distance), ("super", distance))))
        backend = CpuBackend(threads=1)
        try:
            weight = backend.pack(StoredTensor("weight", form, (rows, width), blocks))
            results.append(backend.to_numpy(ops.linear(backend.tensor(x), weight)).copy())
            text = backend.assembly(linear_one(backend.target, LinearShape(FORMATS[name](backend.target))))
            prefetches.append(len(re.findall(r"\bprefetch|\bprfm\b", text)))
        finally:
            backend.close()
    assert np.any(results[0])
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    assert prefetches[0] == 0 < prefetches[1]


def test_tiles_of_a_format_come_before_its_family() -> None:
    tiles = parse_tiles({"attention_rows": 4, "few": TILES | {"Q6_K": [1, 6]}, "many": TILES})
    assert tiles.few_of(FORMATS["Q6_K"]) == (1, 6)  # type: ignore[arg-type]
    assert tiles.few_of(FORMATS["Q4_K"]) == (2, 4)  # type: ignore[arg-type]


TILES = {family: [2, 4] for family in FAMILIES}
GOOD = {"attention_rows": 4, "few": TILES, "many": TILES}


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        GOOD | {"more": 1},
        GOOD | {"attention_rows": 0},
        GOOD | {"few_tokens": {"block": 0}},
        GOOD | {"few_tokens": [16]},
        GOOD | {"prefetch_bytes": {"block": -1}},
        GOOD | {"prefetch_bytes": {"block": 1 << 20}},
        GOOD | {"wide": "Q8_0"},
        GOOD | {"wide": [8]},
        GOOD | {"attention_rows": 10**30},
        GOOD | {"attention_rows": True},
        GOOD | {"attention_rows": 2.0},
        GOOD | {"few": {"block": [1, 1]}},
        GOOD | {"few": [1, 2, 3]},
        GOOD | {"few": TILES | {"block": [1]}},
        GOOD | {"few": TILES | {"block": [1, -1]}},
        GOOD | {"few": TILES | {"block": [1, 1000]}},
        GOOD | {"few": TILES | {"block": "12"}},
        GOOD | {"many": TILES | {"float": [3, 2]}},
        GOOD | {"many": TILES | {"float": [4, 7]}},
        GOOD | {"few": TILES | {"float": [1, 16]}},
    ],
    ids=str,
)
def test_invalid_tiles_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_tiles(values)


def test_measured_tiles_are_used_at_the_next_start(path: Path) -> None:
    target = targets.select_target("generic")
    assert tiles_in_use(target).tiles == target.tiles
    assert "shipped" in tiles_in_use(target).source
    wanted = other(target.tiles)
    save_tiles(path, target, wanted)
    save_tiles(
        path, replace(target, name="avx2"), other(shipped_tiles("avx2"))
    )  # another target has an entry of its own
    found = tiles_in_use(target)
    assert found.tiles == wanted
    assert f"measured here {json.loads(path.read_text())[LIST_KEY][0]['measured']}" in found.source
    assert os.listdir(path.parent) == [path.name], "nothing else is left"
    backend = CpuBackend(threads=1, target="generic")
    try:
        assert backend.target.tiles == wanted
        assert backend.probe().details["tiles"] == found.source
    finally:
        backend.close()


def test_a_second_measurement_replaces_the_first(path: Path) -> None:
    target = targets.select_target("generic")
    save_tiles(path, target, other(target.tiles))
    save_tiles(path, target, target.tiles)
    assert len(json.loads(path.read_text())[LIST_KEY]) == 1
    assert tiles_in_use(target).tiles == target.tiles


@pytest.mark.parametrize("part", ["kernels", "cpu"])
def test_tiles_of_other_kernels_or_another_cpu_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    target = targets.select_target("generic")
    save_tiles(path, target, other(target.tiles))
    if part == "kernels":
        monkeypatch.setattr(measured_tiles, "source_digest", lambda: "other sources")
    else:
        monkeypatch.setattr(measured_tiles.llvm, "get_host_cpu_name", lambda: "another")
    found = tiles_in_use(target)
    assert found.tiles == target.tiles
    assert found.source.startswith("shipped; ")
    assert ("the kernels have changed" in found.source) == (part == "kernels")


def test_the_setting_switches_them_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.select_target("generic")
    save_tiles(path, target, other(target.tiles))
    use(monkeypatch, "shipped")
    assert tiles_in_use(target).tiles == target.tiles
    assert "SPORE_CPU_TILES" in tiles_in_use(target).source


@pytest.mark.parametrize("kernel", ["few", "many"])
def test_tiles_that_do_not_fit_the_target_are_not_compiled(
    path: Path, caplog: pytest.LogCaptureFixture, kernel: str
) -> None:
    """LLVM ends the process when a tile needs many more registers than there are."""
    target = targets.select_target("generic")
    save_tiles(path, target, target.tiles.changed(kernel, dict(target.tiles.of(kernel)) | {"Q6_K": (4, 8)}))
    found = tiles_in_use(target)
    assert found.tiles == target.tiles
    assert "do not fit" in found.source
    (record,) = caplog.records
    assert "do not fit target generic" in record.message


def entry(**changes: Any) -> dict[str, Any]:
    return {"target": "generic", "cpu": "x", "kernels": "k", "measured": "2026-11-21", "tiles": GOOD} | changes


DAMAGED = {
    "empty": b"",
    "cut": b'{"sporelm tiles": [{"target": "gen',
    "no text": bytes(range(256)),
    "list": b"[]",
    "deep": b"[" * 100_000,
    "long number": b'{"sporelm tiles": [' + b"9" * 10_000 + b"]}",
    "foreign": b'{"name": "something else"}',
    "no entries": b'{"sporelm tiles": {}}',
    "null entry": b'{"sporelm tiles": [null]}',
    "large": b" " * (MAX_FILE_BYTES + 1),
    "no tiles": json.dumps({LIST_KEY: [entry(tiles={})]}).encode(),
    "no name": json.dumps({LIST_KEY: [entry(target=["generic"])]}).encode(),
    "lines": json.dumps({LIST_KEY: [entry(measured="2026\nspore: all is well")]}).encode(),
    "a format there is not": json.dumps({LIST_KEY: [entry(tiles=GOOD | {"few": TILES | {"Q9": [1, 1]}})]}).encode(),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_ignored_with_one_line_and_mended(
    path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    target = targets.select_target("generic")
    path.parent.mkdir()
    path.write_bytes(DAMAGED[damage])
    for _ in range(2):
        found = tiles_in_use(target)
        assert found.tiles == target.tiles
        assert "is ignored" in found.source
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(path) in record.message
    assert "spore bench tune" in record.message
    assert "\n" not in record.message
    save_tiles(path, target, other(target.tiles))
    assert tiles_in_use(target).tiles == other(target.tiles)
    assert path.with_name(path.name + BACKUP_SUFFIX).read_bytes() == DAMAGED[damage]


def test_optional_fields_are_saved_where_they_differ(path: Path) -> None:
    target = replace(targets.select_target("generic"), name="avx2")
    shipped = tiles_in_use(target).tiles
    save_tiles(path, target, replace(shipped, wide=()))
    (found,) = json.loads(path.read_text("utf-8"))[LIST_KEY]
    assert found["tiles"]["wide"] == []
    assert not {"few_tokens", "prefetch_bytes"} & found["tiles"].keys()
    assert tiles_in_use(target).tiles == replace(shipped, wide=())


def test_a_link_is_followed_and_the_mode_kept(path: Path) -> None:
    target = targets.select_target("generic")
    path.parent.mkdir()
    own = path.with_name("own.json")
    save_tiles(own, target, target.tiles)
    own.chmod(0o640)
    path.symlink_to(own)
    save_tiles(path, target, other(target.tiles))
    assert path.is_symlink()
    assert tiles_in_use(target).tiles == other(target.tiles)
    assert own.stat().st_mode & 0o777 == 0o640


def test_only_regular_files_are_replaced(path: Path) -> None:
    target = targets.select_target("generic")
    path.mkdir(parents=True)
    for write in (measured_tiles.TILES_FILE.check_writable, lambda path: save_tiles(path, target, target.tiles)):
        with pytest.raises(OSError, match="not a regular file"):
            write(path)
    assert path.is_dir()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_a_pipe_in_the_files_place_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(tiles_in_use(targets.select_target("generic"))), daemon=True)
    reading.start()
    reading.join(60)
    assert found, "it waits for a writer"
    assert "is not a file" in found[0].source


def test_a_folder_that_cannot_be_written_keeps_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.select_target("generic")
    save_tiles(path, target, target.tiles)
    before = path.read_bytes()

    def full(self: Path, *args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        save_tiles(path, target, other(target.tiles))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_kernels_key_follows_its_tiles(cache: ObjectCache) -> None:
    target = targets.select_target("generic")
    kinds = [target, replace(target, tiles=other(target.tiles))]
    kinds.append(replace(target, tiles=target.tiles.changed("few", dict(target.tiles.few) | {"Q4_0": (1, 3)})))

    def key(target: CpuTarget) -> str:
        return Compiler(target, cache).key(linear_few(target, LinearShape(FORMATS["Q4_0"](target))))

    assert len({key(kind) for kind in kinds}) == len(kinds)
    assert key(target) == key(replace(target, tiles=parse_tiles(target.tiles.as_json())))
