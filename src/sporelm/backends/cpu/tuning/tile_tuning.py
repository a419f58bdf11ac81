"""Selection of the register tiles of a target by short measurements; `spore bench tune` runs it.

For each format and kernel the tiles whose sums the registers could hold are compiled. Candidates that spill in inner
loops are dropped, the others run in turn, and slow ones stop early. A family of formats gets the tile that is best for
most of its formats. A format gets its own tile only if that is clearly faster: within `CLEAR_SPEEDUP` nothing changes.

For each format it also chooses 8- or 16-bit products (before the tiles), the prefetch distance of the one-token kernel,
and the number of tokens up to which the few-token kernel is used (after them).
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

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels
from sporelm.backends.cpu.formats.panels import BlockPanels
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.jit.emission import optimize, target_machine
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.cpu.targets.cpu_target import SIGNED
from sporelm.backends.cpu.targets.tiles import ATTENTION_ROWS, FAMILIES, Tiles, TileSize, fitting_tiles
from sporelm.backends.cpu.tuning.tuning_runs import (
    TimedKernel,
    TuningMemory,
    TuningWorkload,
    attention_workloads,
    count_hot_spills,
    crossover_workloads,
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
SPILL_EXEMPT = ("wide", "prefetch")  # choices other than tiles: kernels that spill are not dropped
NUMBER_CANDIDATES: dict[str, Sequence[int]] = {
    "rows": ATTENTION_ROWS,
    "wide": (0, 1),
    "prefetch": (0, 4096, 8192, 32768),
}


class TileComparison(NamedTuple):
    """One format (or attention) and choice: the values before and after, and their times (weighted geometric means).

    choice  few, many: a tile of this kernel; rows: query rows of attention; wide: 1 for products of 16 bits; prefetch:
            bytes; few_tokens: tokens up to which the few-token kernel is used
    """

    name: str
    choice: str
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

    quick: take fewer samples and tune only tiles; without `formats`, one format per family. Raise RequestError for an
    unknown format.
    """
    names = _check_formats(formats) if formats else quick_formats() if quick else list(FORMATS)
    is_whole = not quick
    wide_candidates = [name for name in names if is_whole and can_use_16_bit_products(target, name)]
    integer_formats = [name for name in names if is_whole and issubclass(FORMATS[name], IntegerPanels)]
    stages = len(wide_candidates) + (2 + is_whole) * len(names) + len(integer_formats) + (formats is None)
    bench = _TileBenchmark(target, QUICK_ROUNDS if quick else ROUNDS, progress, stages)
    rows = [bench.choose_number("wide", name) for name in wide_candidates]
    for kernel in ("few", "many"):
        tiles = bench.target.tiles
        scores = {name: bench.scores(kernel, name) for name in names}
        weighed = {name: bench.weighed(kernel, name, times) for name, times in scores.items()}
        found = tiles.changed(kernel, choose_tiles(tiles.of(kernel), weighed, whole=quick and not formats))
        for name, by_tile in scores.items():
            before, after = (_tile(each, kernel, name) for each in (tiles, found))
            rows.append(TileComparison(name, kernel, before, after, by_tile[before], by_tile[after]))
        bench.target = replace(bench.target, tiles=found)
    rows += [bench.choose_number("prefetch", name) for name in integer_formats]
    rows += [bench.choose_few_tokens(name) for name in names if is_whole]
    if formats is None:
        rows.append(bench.choose_number("rows", ATTENTION))
    return TuningResult(target, bench.target.tiles, tuple(rows))


def can_use_16_bit_products(target: CpuTarget, name: str) -> bool:
    """Return whether a format's values span signed 8 bits, and the target may multiply them faster as 16-bit numbers.

    A target that may lists formats in `Tiles.wide`.
    """
    kind = FORMATS[name](target)
    return bool(target.tiles.wide) and isinstance(kind, BlockPanels) and kind.largest >= SIGNED


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


def choose_crossover(before: int, times: Sequence[tuple[int, float, float]]) -> tuple[int, dict[int, float]]:
    """Return the largest number of tokens for which the few-token kernel is used, and the mean seconds of each limit.

    `times` has numbers of tokens, in order, with the seconds of the few-token and of the many-token kernel. The current
    limit stays unless the token counts whose kernel would change get clearly faster on average.
    """

    def seconds(limit: int) -> list[float]:
        return [few if tokens <= limit else many for tokens, few, many in times]

    limits = sorted({before, *(tokens for tokens, _, _ in times)})
    scores = {limit: exp(sum(map(log, seconds(limit))) / len(times)) for limit in limits}
    best = min(limits, key=scores.__getitem__)
    ratios = [log(old / new) for old, new in zip(seconds(before), seconds(best), strict=True) if old != new]
    is_faster = bool(ratios) and sum(ratios) > len(ratios) * log(CLEAR_SPEEDUP)
    return (best if is_faster else before), scores


def _as_tile(tile: tuple[int, ...]) -> TileSize:
    panels, tokens = tile
    return panels, tokens


def _tile(tiles: Tiles, kernel: str, name: str) -> TileSize:
    kind = FORMATS[name]
    return tiles.few_of(kind) if kernel == "few" else tiles.many_of(kind)


def with_choice(target: CpuTarget, choice: str, name: str, value: tuple[int, ...]) -> CpuTarget:
    """Return the target with one choice of a format changed."""
    tiles = target.tiles
    if choice in ("few", "many"):
        changed = tiles.changed(choice, dict(tiles.of(choice)) | {name: _as_tile(value)})
    elif choice == "rows":
        changed = replace(tiles, attention_rows=value[0])
    elif choice == "wide":
        others = [each for each in tiles.wide if each != name]
        changed = replace(tiles, wide=(*others, name) if value[0] else tuple(others))
    elif choice == "prefetch":
        changed = replace(tiles, prefetch_bytes=_set_number(tiles.prefetch_bytes, name, value[0]))
    else:
        changed = replace(tiles, few_tokens=_set_number(tiles.few_tokens, name, value[0]))
    return replace(target, tiles=changed)


def _set_number(numbers: Sequence[tuple[str, int]], name: str, number: int) -> tuple[tuple[str, int], ...]:
    """Return the numbers with that of one format set. A number equal to its family's is not stored."""
    by_name = dict(numbers)
    by_name.pop(name, None)
    return tuple((by_name if by_name.get(FORMATS[name].family) == number else by_name | {name: number}).items())


def candidates(target: CpuTarget, choice: str, name: str) -> list[tuple[int, ...]]:
    """Return the values to try, those in use first: the format's own and, of tiles, its family's.

    Only tiles with sums that fit the registers are tried.
    """
    if choice not in ("few", "many"):
        return list(
            dict.fromkeys([number_in_use(target.tiles, choice, name), *((n,) for n in NUMBER_CANDIDATES[choice])])
        )
    family = FORMATS[name].family
    in_use = [_tile(target.tiles, choice, name), dict(target.tiles.of(choice))[family]]
    return list(dict.fromkeys([*in_use, *fitting_tiles(target, choice, family)]))


def number_in_use(tiles: Tiles, choice: str, name: str) -> tuple[int]:
    """Return the number in use of a choice that is not a tile."""
    if choice == "rows":
        return (tiles.attention_rows,)
    if choice == "wide":
        return (int(name in tiles.wide),)
    return ((tiles.prefetch_bytes_of if choice == "prefetch" else tiles.few_tokens_of)(FORMATS[name]),)


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

    def choose_number(self, choice: str, name: str) -> TileComparison:
        """Choose a number by its times, and use it from now on."""
        times = self.scores(choice, name)
        before = number_in_use(self.target.tiles, choice, name)
        after = _fastest(self.weighed(choice, name, times), before)
        if after != before:
            self.target = with_choice(self.target, choice, name, after)
        return TileComparison(name, choice, before, after, times[before], times[after])

    def choose_few_tokens(self, name: str) -> TileComparison:
        """Choose up to how many tokens the few-token kernel is used, and use it from now on."""
        before = number_in_use(self.target.tiles, "few_tokens", name)
        self._tell(f"{name} few_tokens", 0)
        with TemporaryDirectory(prefix="sporelm") as folder:
            compiler = Compiler(self.target, ObjectCache(Path(folder) / "kernels"))
            runs: dict[tuple[int, ...], list[TimedKernel]] = {
                (tokens, number): [work.run(compiler, self.arena)]
                for tokens, pair in crossover_workloads(self.target, name, self.arena)
                for number, work in enumerate(pair)
            }
        times = race(runs, runs, self.rounds[:2])
        counts = sorted({key[0] for key in runs})
        chosen, scores = choose_crossover(
            before[0], [(tokens, times[tokens, 0], times[tokens, 1]) for tokens in counts]
        )
        if chosen != before[0]:
            self.target = with_choice(self.target, "few_tokens", name, (chosen,))
        self._end_stage(f"{name} few_tokens")
        return TileComparison(name, "few_tokens", before, (chosen,), scores[before[0]], scores[chosen])

    def scores(self, choice: str, name: str) -> Scores:
        """Return the seconds of each candidate that ran."""
        found, is_tile = candidates(self.target, choice, name), choice in ("few", "many")
        keep = set(found[: 1 + is_tile])
        runs: dict[tuple[int, ...], list[TimedKernel]] = {}
        full: set[int] = set()  # panels for which no further tokens fit
        with TemporaryDirectory(prefix="sporelm") as folder:
            objects = ObjectCache(Path(folder) / "kernels")
            for number, value in enumerate(found):
                self._tell(f"{name} {choice}", number / len(found))
                if value in keep or value[0] not in full:
                    made = self._runs(choice, name, value, objects, value in keep or choice in SPILL_EXEMPT)
                    runs |= {value: made} if made else {}
                    full |= {value[0]} if is_tile and not made else set()
        times = confirm_best(runs, found[0], race(runs, keep, self.rounds), self.rounds)
        self._end_stage(f"{name} {choice}")
        return times

    def _end_stage(self, what: str) -> None:
        self._stage += 1
        self._tell(what, 0)

    def weighed(self, choice: str, name: str, times: Scores) -> Scores:
        """Return times for the selection: a tile that spills must be clearly faster than one that does not."""
        return {
            tile: time * (CLEAR_SPEEDUP if (choice, name, tile) in self.spilling else 1) for tile, time in times.items()
        }

    def _runs(
        self, choice: str, name: str, tile: tuple[int, ...], objects: ObjectCache, needed: bool
    ) -> list[TimedKernel]:
        """Return the runs of a candidate; none if its inner loops spill much, unless it is needed."""
        target = with_choice(self.target, choice, name, tile)
        compiler = Compiler(target, objects)
        work = list(self._list_workloads(choice, target, name))
        for each in {each.kernel.name: each.kernel for each in work}.values():
            text, code = compile_kernel(each, target)
            spills = count_hot_spills(text)
            if not needed and spills > MAX_SPILLS * prod(tile):
                return []
            self.spilling |= {(choice, name, tile)} if spills and choice in ("few", "many", "rows") else set()
            objects.put(compiler.key(each), code())
        return [each.run(compiler, self.arena) for each in work]

    def _list_workloads(self, choice: str, target: CpuTarget, name: str) -> Iterable[TuningWorkload]:
        if choice == "rows":
            return attention_workloads(target, self.arena)
        if choice == "prefetch":
            return [next(iter(few_token_workloads(target, name, self.arena)))]  # of one token
        few = few_token_workloads(target, name, self.arena)
        many = many_token_workloads(target, name, self.arena)
        return {"few": few, "many": many}.get(choice) or [*few, *many]

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


def confirm_best(
    runs: Mapping[tuple[int, ...], Sequence[TimedKernel]],
    before: tuple[int, ...],
    times: Scores,
    rounds: Sequence[tuple[int, float]],
) -> Scores:
    """Race the fastest candidate against the current one again, and use the worse of the two ratios, so that noise in
    the first race does not replace the current one."""
    best = min(times, key=times.__getitem__)
    if best == before or before not in times:
        return times
    again = race({value: runs[value] for value in (before, best)}, (before, best), rounds)
    return times | {best: times[before] * max(times[best] / times[before], again[best] / again[before])}


def _score(runs: Sequence[TimedKernel], samples: Sequence[Sequence[float]]) -> float:
    total = sum(run.weight for run in runs)
    logs = (run.weight * log(max(median(taken), 1e-9)) for run, taken in zip(runs, samples, strict=True))
    return exp(sum(logs) / total)
