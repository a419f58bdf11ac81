"""Measures what this machine can do at most, now: reading memory and multiplying, with the team's threads."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from sporelm.backends.cpu.entries import Cell, Entry
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.kernels.limits import BLOCK, CHAINS, WORDS, dots, fmas, stream
from sporelm.backends.cpu.memory import Region
from sporelm.backends.cpu.program import Cells, assemble
from sporelm.backends.cpu.team import Team

STREAM_BYTES = 256 << 20  # more than any cache holds
TURNS = 200_000
REPEATS = 12  # of each measurement, some 20 ms long: other programs can slow one down, and make none faster


def measure(compiler: Compiler, team: Team, clock: Callable[[], float] = perf_counter) -> dict[str, float]:
    """Return the best rates of several short measurements: bytes read a second, and operations (two a multiply-add) a
    second; of reading the median as well. Of one thread, `clock` may be its own time."""
    memory = Region(STREAM_BYTES + 4096)
    memory.array[::4096] = 1
    target = compiler.target

    def times(entry: Entry) -> list[float]:
        cells, own = Cells(), []  # type: tuple[Cells, list[Region]]
        table = assemble([entry], compiler, cells, own, team.threads)
        return _times(lambda: team.run(table), clock)

    blocks = STREAM_BYTES // BLOCK
    reads = times(
        Entry(stream(target), {"source": memory.address}, Cell("blocks", blocks), grain=blocks // (16 * team.threads))
    )
    share = TURNS // 16
    rates = [
        2
        * CHAINS
        * TURNS
        * team.threads
        * width
        / min(times(Entry(kernel, {"unused": 0}, Cell("turns", TURNS * team.threads), grain=share)))
        for kernel, width in ((dots(target), WORDS * 4 * target.lanes), (fmas(target), target.lanes))
    ]
    return {
        "stream_bytes_s": STREAM_BYTES / min(reads),
        "stream_median_bytes_s": STREAM_BYTES / median(reads),
        "int8_dot_ops_s": rates[0],
        "f32_ops_s": rates[1],
    }


def _times(work: Callable[[], None], clock: Callable[[], float]) -> list[float]:
    """Return the seconds that each of several repetitions takes, after one that does not count."""
    work()
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return times
