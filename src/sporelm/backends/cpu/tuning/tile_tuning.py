"""Selection of the register tiles of a target by short measurements; `spore bench tune` runs it.

For each format and kernel the tiles whose sums the registers could hold are compiled. Candidates that spill in inner
loops are dropped, the others run in turn, and slow ones stop early. A family of formats gets the tile that is best for
most of its formats. A format gets its own tile only if that is clearly faster: within `CLEAR_SPEEDUP` nothing changes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf, log, prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import llvmlite.binding as llvm

from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.jit.emission import optimize, target_machine
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.cpu.targets.tiles import ATTENTION_ROWS, FAMILIES, Tiles, TileSize, fitting_tiles
from sporelm.backends.cpu.tuning.tuning_runs import (
    TimedKernel,
    TuningMemory,
    TuningWorkload,
    attention_workloads,
    count_hot_spills,
    few_token_workloads,
    many_token_workloads,
)
from sporelm.backends.file_cache import ObjectCache
from sporelm.errors import RequestError

Progress = Callable[[str, int, int], None]

MAX_SPILLS = 8  # vectors per sum that an inner loop spills, above which a tile is not tried (measured: far too slow)
MISSING_SLOWDOWN = 2.0  # the slowdown against the best that is assumed for a tile that did not run
CLEAR_SPEEDUP = 1.02  # a tile must be faster by this factor to replace another
ROUNDS = (
    (4, 1.3),
    (8, 1.12),
    (24, 1.0),
)  # samples of each candidate, and the slowdown against the best up to which it continues
QUICK_ROUNDS = ((3, 1.15), (7, 1.0))
ATTENTION = "attention"


class TileComparison(NamedTuple):
    """One format (or attention) and kernel: the tiles before and after, and their times (weighted geometric means)."""

    name: str
    kernel: str  # few, many, or rows
    before: tuple[int, ...]
    after: tuple[int, ...]
    before_s: float
    after_s: float

    @property
    def gain(self) -> float:
        """Return the speedup."""
        return self.before_s / self.after_s


@dataclass(frozen=True)
class TuningResult:
    """The measurements of a target."""

    target: CpuTarget  # with the tiles before
    tiles: Tiles  # the selected tiles
    rows: tuple[TileComparison, ...]


Scores = dict[tuple[int, ...], float]  # seconds by tile


def tune_tiles(
    target: CpuTarget, formats: Sequence[str] | None = None, progress: Progress | None = None, *, quick: bool = False
) -> TuningResult:
    """Return the best tiles of a target for some formats, all when None; target.tiles are those in use.

    quick: one format stands for its family, with fewer samples. Raise RequestError for an unknown format.
    """
    names = _check_formats(formats) if formats else quick_formats() if quick else list(FORMATS)
    bench = _TileBenchmark(target, QUICK_ROUNDS if quick else ROUNDS, progress, 2 * len(names) + (formats is None))
    tiles, rows = target.tiles, []
    for kernel in ("few", "many"):
        scores = {name: bench.scores(kernel, name) for name in names}
        weighed = {name: bench.weighed(kernel, name, times) for name, times in scores.items()}
        found = tiles.changed(kernel, choose_tiles(tiles.of(kernel), weighed, whole=quick and not formats))
        for name, by_tile in scores.items():
            before, after = (_tile(each, kernel, name) for each in (tiles, found))
            rows.append(TileComparison(name, kernel, before, after, by_tile[before], by_tile[after]))
        tiles = found
    if formats is None:
        by_rows = bench.scores("rows", ATTENTION)
        old = (tiles.attention_rows,)
        new = _fastest(bench.weighed("rows", ATTENTION, by_rows), old)
        rows.append(TileComparison(ATTENTION, "rows", old, new, by_rows[old], by_rows[new]))
        tiles = replace(tiles, attention_rows=new[0])
    return TuningResult(target, tiles, tuple(rows))


def _check_formats(formats: Iterable[str]) -> list[str]:
    by_name = {name.upper(): name for name in FORMATS}
    for name in formats:
        if name.upper() not in by_name:
            raise RequestError(f"no format {name!r:.40} has kernels of its own; there are {', '.join(FORMATS)}")
    return list(dict.fromkeys(by_name[name.upper()] for name in formats))


def quick_formats() -> list[str]:
    """Return one format of each family, the first of integers and the halves of floats."""
    return [next(n for n, kind in FORMATS.items() if kind.family == family and n != "F32") for family in FAMILIES]


def choose_tiles(
    before: Sequence[tuple[str, TileSize]], scores: Mapping[str, Scores], *, whole: bool = False
) -> dict[str, TileSize]:
    """Select tiles by family and format from the times of some formats' tiles.

    A family's tile is selected when all its formats were measured, or some and `whole`; a format's own when it is
    clearly faster. Everything else stays.
    """
    chosen = dict(before)
    for family in FAMILIES:
        members = {name for name, kind in FORMATS.items() if kind.family == family}
        measured = [scores[name] for name in scores if name in members]
        if measured and (whole or len(measured) == len(members)):
            chosen[family] = _as_tile(_best_for_family(measured, chosen[family]))
        for name in sorted(members & scores.keys()):
            own = _as_tile(_fastest(scores[name], chosen[family]))
            chosen.pop(name, None)
            if own != chosen[family]:
                chosen[name] = own
    order = {name: number for number, name in enumerate((*FAMILIES, *FORMATS))}
    return dict(sorted(chosen.items(), key=lambda item: order.get(item[0], len(order))))


def _best_for_family(measured: Sequence[Scores], before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tile with which the most formats are about as fast as possible, then all on average; or the
    previous one."""
    shares = [{tile: time / min(times.values()) for tile, time in times.items()} for times in measured]

    def rank(tile: tuple[int, ...]) -> tuple[int, float]:
        slower = [min(times.get(tile, MISSING_SLOWDOWN), MISSING_SLOWDOWN) for times in shares]
        return -sum(share <= CLEAR_SPEEDUP for share in slower), sum(map(log, slower))

    best = min({tile for times in shares for tile in times}, key=rank)
    (count, mean), (old_count, old_mean) = rank(best), rank(before)
    return before if old_count == count and old_mean <= mean + len(shares) * log(CLEAR_SPEEDUP) else best


def _fastest(times: Scores, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the fastest tile, or the previous one if it is about as fast."""
    best = min(times, key=times.__getitem__)
    return before if times.get(before, inf) <= times[best] * CLEAR_SPEEDUP else best


def _as_tile(tile: tuple[int, ...]) -> TileSize:
    panels, tokens = tile
    return panels, tokens


def _tile(tiles: Tiles, kernel: str, name: str) -> TileSize:
    kind = FORMATS[name]
    return tiles.few_of(kind) if kernel == "few" else tiles.many_of(kind)


def with_tile(target: CpuTarget, kernel: str, name: str, tile: tuple[int, ...]) -> CpuTarget:
    """Return the target with one tile of a format changed."""
    if kernel == "rows":
        return replace(target, tiles=replace(target.tiles, attention_rows=tile[0]))
    by_name = dict(target.tiles.of(kernel)) | {name: _as_tile(tile)}
    return replace(target, tiles=target.tiles.changed(kernel, by_name))


def candidates(target: CpuTarget, kernel: str, name: str) -> list[tuple[int, ...]]:
    """Return the tiles in use, the format's own and its family's, then tiles whose sums fit the registers."""
    if kernel == "rows":
        return list(dict.fromkeys([(target.tiles.attention_rows,), *((rows,) for rows in ATTENTION_ROWS)]))
    family = FORMATS[name].family
    in_use = [_tile(target.tiles, kernel, name), dict(target.tiles.of(kernel))[family]]
    return list(dict.fromkeys([*in_use, *fitting_tiles(target, kernel, family)]))


def compile_kernel(kernel: Kernel, target: CpuTarget) -> tuple[str, Callable[[], bytes]]:
    """Return the assembly text of a kernel, and its object code on request; optimised once."""
    machine = target_machine(target)
    module = optimize(kernel, target, machine)
    text: str = machine.emit_assembly(llvm.parse_bitcode(module.as_bitcode()))  # emitting changes a module
    return text, partial(machine.emit_object, module)


class _TileBenchmark:
    """Compiles candidates and races them."""

    def __init__(
        self, target: CpuTarget, rounds: Sequence[tuple[int, float]], progress: Progress | None, stages: int
    ) -> None:
        self.target, self.rounds = target, rounds
        self.arena = TuningMemory()
        self.spilling: set[tuple[str, str, tuple[int, ...]]] = set()
        self._progress, self._stages, self._stage = progress, stages, 0

    def scores(self, kernel: str, name: str) -> Scores:
        """Return the seconds of each candidate that ran."""
        found = candidates(self.target, kernel, name)
        keep = set(found[:1] if kernel == "rows" else found[:2])
        runs: dict[tuple[int, ...], list[TimedKernel]] = {}
        full: set[int] = set()  # panels for which no further tokens fit
        with TemporaryDirectory(prefix="sporelm") as folder:
            objects = ObjectCache(Path(folder) / "kernels")
            for number, tile in enumerate(found):
                self._tell(f"{name} {kernel}", number / len(found))
                if tile in keep or tile[0] not in full:
                    made = self._runs(kernel, name, tile, objects, tile in keep)
                    runs |= {tile: made} if made else {}
                    full |= set() if made or kernel == "rows" else {tile[0]}
        times = race(runs, keep, self.rounds)
        self._stage += 1
        self._tell(f"{name} {kernel}", 0)
        return times

    def weighed(self, kernel: str, name: str, times: Scores) -> Scores:
        """Return times for the selection: a tile that spills must be clearly faster than one that does not."""
        return {
            tile: time * (CLEAR_SPEEDUP if (kernel, name, tile) in self.spilling else 1) for tile, time in times.items()
        }

    def _runs(
        self, kernel: str, name: str, tile: tuple[int, ...], objects: ObjectCache, needed: bool
    ) -> list[TimedKernel]:
        """Return the runs of a candidate; none if its inner loops spill much, unless it is needed."""
        target = with_tile(self.target, kernel, name, tile)
        compiler = Compiler(target, objects)
        work = list(self._list_workloads(kernel, target, name))
        for each in {each.kernel.name: each.kernel for each in work}.values():
            text, code = compile_kernel(each, target)
            spills = count_hot_spills(text)
            if spills > MAX_SPILLS * prod(tile) and not needed:
                return []
            self.spilling |= {(kernel, name, tile)} if spills else set()
            objects.put(compiler.key(each), code())
        return [each.run(compiler, self.arena) for each in work]

    def _list_workloads(self, kernel: str, target: CpuTarget, name: str) -> Iterable[TuningWorkload]:
        if kernel == "rows":
            return attention_workloads(target, self.arena)
        return (few_token_workloads if kernel == "few" else many_token_workloads)(target, name, self.arena)

    def _tell(self, what: str, share: float) -> None:
        if self._progress:
            self._progress(f"measuring {what}", round(1000 * (self._stage + share)), 1000 * self._stages)


def race(
    runs: Mapping[tuple[int, ...], Sequence[TimedKernel]],
    keep: Iterable[tuple[int, ...]],
    rounds: Sequence[tuple[int, float]] = ROUNDS,
) -> Scores:
    """Return the seconds of each candidate: the weighted geometric mean of its runs' medians.

    All run in turn, so that disturbances affect all alike; slow ones stop early, except `keep`.
    """
    samples: dict[tuple[int, ...], list[list[float]]] = {tile: [[] for _ in work] for tile, work in runs.items()}
    alive, times, turn = list(runs), {}, 0
    for tile in alive:  # once to warm the caches
        for run in runs[tile]:
            run.seconds(0)
    for count, slower in rounds:
        for _ in range(count):
            for tile in alive:
                for run, taken in zip(runs[tile], samples[tile], strict=True):
                    taken.append(run.seconds(turn))
                    turn += 1
        for tile in alive:
            times[tile] = _score(runs[tile], samples[tile])
        limit = slower * min(times.values())
        alive = [tile for tile in alive if times[tile] <= limit or tile in keep]
    return times


def _score(runs: Sequence[TimedKernel], samples: Sequence[Sequence[float]]) -> float:
    total = sum(run.weight for run in runs)
    logs = (run.weight * log(max(median(taken), 1e-9)) for run, taken in zip(runs, samples, strict=True))
    return exp(sum(logs) / total)
