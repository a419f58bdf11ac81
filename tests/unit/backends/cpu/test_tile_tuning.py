"""Tuning: what is tried, how a tile is chosen, what counts as a spill, and one short measurement. Nothing of speed."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.kernels import many_token_linear
from sporelm.backends.cpu.targets.tiles import FAMILIES, TileSize, parse_tiles, registers
from sporelm.backends.cpu.tuning import tile_tuning, tuning_runs
from sporelm.backends.cpu.tuning.tile_tuning import (
    Scores,
    can_use_16_bit_products,
    candidates,
    choose_crossover,
    choose_tiles,
    compile_kernel,
    confirm_best,
    number_in_use,
    race,
    tune_tiles,
    with_choice,
)
from sporelm.backends.cpu.tuning.tuning_runs import (
    TuningMemory,
    attention_workloads,
    count_hot_spills,
    crossover_workloads,
    few_token_workloads,
    many_token_workloads,
)
from sporelm.errors import RequestError

BEFORE: tuple[tuple[str, TileSize], ...] = (("block", (1, 8)), ("super", (1, 6)), ("float", (2, 4)))
BLOCKS = [name for name, kind in FORMATS.items() if kind.family == "block"]


def scores(best: TileSize, seconds: float = 1.0) -> Scores:
    return {(1, 8): 2.0, (1, 4): 1.5, (2, 4): 1.6, best: seconds}


def test_a_family_takes_what_serves_its_formats_best() -> None:
    assert choose_tiles(BEFORE, {name: scores((1, 4)) for name in BLOCKS}) == dict(BEFORE) | {"block": (1, 4)}


def test_a_format_has_a_tile_of_its_own_only_where_that_is_clearly_faster() -> None:
    measured = {name: scores((1, 4)) for name in BLOCKS}
    chosen = choose_tiles(BEFORE, measured | {"Q8_0": scores((2, 4), 1.0)})
    assert chosen == dict(BEFORE) | {"block": (1, 4), "Q8_0": (2, 4)}
    assert choose_tiles(tuple(chosen.items()), measured) == dict(BEFORE) | {"block": (1, 4)}, "and loses it again"
    close: dict[str, Scores] = measured | {"Q8_0": {(1, 8): 2.0, (1, 4): 1.01, (2, 4): 1.0}}
    assert choose_tiles(BEFORE, close) == dict(BEFORE) | {"block": (1, 4)}


def test_what_is_about_as_fast_stays() -> None:
    measured: dict[str, Scores] = {name: {(1, 8): 1.015, (1, 4): 1.0} for name in BLOCKS}
    assert choose_tiles(BEFORE, measured) == dict(BEFORE)


def test_some_formats_do_not_decide_for_their_family_unless_they_stand_for_it() -> None:
    assert choose_tiles(BEFORE, {"Q4_0": scores((1, 4))}) == dict(BEFORE) | {"Q4_0": (1, 4)}
    assert choose_tiles(BEFORE, {"Q4_0": scores((1, 4))}, whole=True) == dict(BEFORE) | {"block": (1, 4)}
    assert sorted(FORMATS[name].family for name in tile_tuning.quick_formats()) == sorted(FAMILIES)


def test_a_format_that_was_not_run_with_the_familys_tile_has_its_own() -> None:
    measured = {name: scores((1, 3), 0.5) for name in BLOCKS} | {"Q5_1": scores((1, 4))}
    assert choose_tiles(BEFORE, measured) == dict(BEFORE) | {"block": (1, 3), "Q5_1": (1, 4)}


def test_a_family_goes_with_the_most_of_its_formats() -> None:
    most = len(BLOCKS) // 2 + 1
    measured = {name: scores((1, 4)) for name in BLOCKS[:most]} | {name: scores((2, 2), 0.1) for name in BLOCKS[most:]}
    assert choose_tiles(BEFORE, measured) == dict(BEFORE) | {"block": (1, 4)} | dict.fromkeys(BLOCKS[most:], (2, 2))


def test_the_crossover_is_where_the_many_token_kernel_becomes_faster() -> None:
    times = [(4, 1.0, 2.0), (8, 2.0, 2.5), (16, 4.0, 3.0), (32, 8.0, 5.0)]
    chosen, means = choose_crossover(64, times)
    assert chosen == 8
    assert means == pytest.approx({4: 37.5**0.25, 8: 30**0.25, 16: 40**0.25, 32: 64**0.25, 64: 64**0.25})
    assert choose_crossover(12, times)[0] == 12, "the same kernel for each number of tokens"
    assert choose_crossover(4, [(4, 1.0, 2.0), (8, 2.0, 2.01)])[0] == 4, "hardly faster"
    noisy = [(tokens, 1.0, 1.0 + noise) for tokens, noise in enumerate((0.03, -0.02, 0.02, -0.03, 0.03, -0.02), 2)]
    assert choose_crossover(4, noisy)[0] == 4, "equally fast but for noise"


def test_a_choice_changes_one_format(target: Any) -> None:
    name, other = "Q8_0", FORMATS["Q4_0"]
    assert with_choice(target, "wide", name, (1,)).tiles.wide.count(name) == 1
    assert name not in with_choice(target, "wide", name, (0,)).tiles.wide
    for choice, number in (("prefetch", "prefetch_bytes_of"), ("few_tokens", "few_tokens_of")):
        changed = with_choice(target, choice, name, (96,)).tiles
        assert number_in_use(changed, choice, name) == (96,)
        assert getattr(changed, number)(other) == getattr(target.tiles, number)(other)
        assert parse_tiles(changed.as_json()) == changed
    family = dict(target.tiles.prefetch_bytes)["block"]
    own = with_choice(target, "prefetch", name, (96,))
    assert name not in dict(with_choice(own, "prefetch", name, (family,)).tiles.prefetch_bytes)


@pytest.mark.parametrize("kernel", ["few", "many", "rows"])
def test_candidates_are_tiles_that_kernels_can_have(target: Any, kernel: str) -> None:
    for name, kind in FORMATS.items():
        found = candidates(target, kernel, name)
        assert len(found) == len(set(found)) > 3
        if kernel == "rows":
            assert found[0] == (target.tiles.attention_rows,)
            continue
        assert found[0] == (target.tiles.few_of(kind) if kernel == "few" else target.tiles.many_of(kind))
        for tile in found:
            tiles = with_choice(target, kernel, name, tile).tiles
            assert (tiles.few_of(kind) if kernel == "few" else tiles.many_of(kind)) == tile
            assert (
                kernel == "few" or tile in found[:2] or many_token_linear.TOKENS_PER_BLOCK % tile[1] == tile[0] % 2 == 0
            )


class FakeRun:
    """A run whose time is known; counts how often it is asked."""

    weight = 1.0

    def __init__(self, seconds: float) -> None:
        self.time = seconds
        self.num_calls = 0

    def seconds(self, turn: int) -> float:
        self.num_calls += 1
        return self.time * (50 if turn % 7 == 3 else 1)  # now and then a neighbour disturbs


def test_the_race_drops_the_slow_and_keeps_what_it_must() -> None:
    times = {(1, 1): 1.0, (1, 2): 1.05, (1, 3): 2.0, (1, 4): 3.0}
    runs: dict[Any, Any] = {tile: [FakeRun(time)] for tile, time in times.items()}
    found = race(runs, {(1, 4)}, ((5, 1.5), (9, 1.0)))
    assert found == pytest.approx(times)
    asked = {tile: work[0].num_calls for tile, work in runs.items()}
    assert asked == {(1, 1): 15, (1, 2): 15, (1, 3): 6, (1, 4): 15}


def test_the_best_is_raced_a_second_time_against_what_is_in_use() -> None:
    runs: dict[Any, Any] = {tile: [FakeRun(time)] for tile, time in {(1, 1): 1.0, (1, 2): 0.9, (1, 3): 2.0}.items()}
    rounds = ((5, 1.5),)
    assert confirm_best(runs, (1, 1), {(1, 1): 1.0, (1, 2): 0.5, (1, 3): 2.0}, rounds) == pytest.approx(
        {(1, 1): 1.0, (1, 2): 0.9, (1, 3): 2.0}
    )
    disturbed = {(1, 1): 3.0, (1, 2): 2.9, (1, 3): 2.0}
    assert confirm_best(runs, (1, 1), disturbed, rounds)[1, 3] == pytest.approx(6.0)
    assert confirm_best(runs, (1, 2), {(1, 1): 1.0, (1, 2): 0.5}, rounds) == {(1, 1): 1.0, (1, 2): 0.5}


X86 = """
	vmovaps	%ymm1, 32(%rsp)
.LBB0_1:
	vmovaps	%ymm1, 64(%rsp)
.LBB0_2:
	vpmaddubsw	(%rsp), %ymm1, %ymm2
	vmovups	(%rsi), %ymm3
	jne	.LBB0_2
	vmovaps	64(%rsp), %ymm1
	jb	.LBB0_1
	vmovaps	32(%rsp), %ymm1
"""
ARM = """
LBB0_1:
	str	q1, [sp, #16]
	ldr	q2, [x1]
	b.ne	LBB0_1
	ldr	q1, [sp, #16]
"""


def test_spills_count_in_the_innermost_loops() -> None:
    assert count_hot_spills(X86) == 1
    assert count_hot_spills(ARM) == 1
    assert count_hot_spills(X86.replace("%rsp", "%rdi")) == 0


def test_a_tile_too_large_for_the_registers_spills(target: Any) -> None:
    def spills(tile: TileSize) -> int:
        found = with_choice(target, "many", "Q4_0", tile)
        return count_hot_spills(
            compile_kernel(next(many_token_workloads(found, "Q4_0", TuningMemory())).kernel, found)[0]
        )

    assert spills((registers(target) // 8, 6)) > spills((2, 1))


def test_work_stays_within_its_memory(target: Any) -> None:
    """Weights and rows are read, outputs written, where the arena has them."""
    arena = TuningMemory()
    works = [*attention_workloads(target, arena)]
    for name in FORMATS:
        works += [*few_token_workloads(target, name, arena), *many_token_workloads(target, name, arena)]
        works += [work for _, pair in crossover_workloads(target, name, arena) for work in pair]
    rows = {arena.floats.address: arena.floats.array.size, arena.rounded.address: arena.rounded.array.size}
    for work in works:
        fields = work.fields
        assert work.kernel.scratch <= arena.scratch.array.size
        assert {name for name, _ in work.kernel.fields} <= fields.keys()
        if "panels0" in fields:
            nbytes = fields["panels0"] * fields["panel_bytes"]
            assert max(nbytes, work.nbytes) <= arena.weights.array.size
            assert fields["tokens"] * fields["x_stride"] <= rows[fields["x"]]
            assert fields["tokens"] * fields["out_stride0"] <= arena.out.array.size


def test_a_short_measurement_of_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.select_target("generic")
    monkeypatch.setattr(tile_tuning, "fitting_tiles", lambda target, kernel, family: [(2, 1)])
    monkeypatch.setattr(tile_tuning, "ROUNDS", ((1, 1.0),))
    monkeypatch.setattr(tuning_runs, "CROSSOVER_TOKENS", (4, 8))
    monkeypatch.setattr(tile_tuning, "QUICK_ROUNDS", ((1, 1.0),))
    told: Counter[str] = Counter()
    shares = []

    def progress(stage: str, done: int, total: int) -> None:
        told[stage] += 1
        shares.append(done / total)

    tuning = tune_tiles(target, ["q4_0"], progress)
    choices = ["few", "many", "prefetch", "few_tokens"]
    assert [(row.name, row.choice) for row in tuning.rows] == [("Q4_0", choice) for choice in choices]
    assert [row.after for row in tuning.rows[2:]] == [
        number_in_use(tuning.tiles, choice, "Q4_0") for choice in choices[2:]
    ]
    assert all(row.before_s > 0 and row.after_s > 0 for row in tuning.rows)
    assert tuning.rows[0].after == tuning.tiles.few_of(FORMATS["Q4_0"])  # type: ignore[arg-type]
    assert tuning.tiles.attention_rows == target.tiles.attention_rows
    assert {"measuring Q4_0 few", "measuring Q4_0 many"} <= told.keys()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [row.choice for row in tune_tiles(target, ["q4_0"], quick=True).rows] == choices[:2]


def test_products_of_16_bits_are_measured_where_a_target_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.select_target("generic")
    target = replace(target, tiles=replace(target.tiles, wide=("Q8_0",)))
    monkeypatch.setattr(tile_tuning, "fitting_tiles", lambda target, kernel, family: [])
    monkeypatch.setattr(tile_tuning, "ROUNDS", ((1, 1.0),))
    monkeypatch.setattr(tuning_runs, "CROSSOVER_TOKENS", (4, 8))
    tuning = tune_tiles(target, ["q8_0"])
    assert tuning.rows[0].choice == "wide"
    assert tuning.rows[0].after == number_in_use(tuning.tiles, "wide", "Q8_0")
    assert not can_use_16_bit_products(target, "Q4_0")
    assert not can_use_16_bit_products(targets.select_target("generic"), "Q8_0")


def test_an_unknown_format_is_named_with_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"no format 'Q9'.*F32.*Q6_K"):
        tune_tiles(targets.select_target("generic"), ["Q9"])
