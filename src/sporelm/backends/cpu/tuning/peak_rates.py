"""Measurement of the peak rates of this machine, now: reading memory and multiplying, with the pool's threads."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from sporelm.backends.cpu.cpu_program import CellTable, assemble
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.lowering.emitter import Cell, KernelEntry
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from sporelm.backends.cpu.tuning.peak_kernels import BLOCK, CHAINS, WORDS, dots, fmas, stream

STREAM_BYTES = 256 << 20  # exceeds any cache
TURNS = 200_000
REPEATS = 12  # of each measurement, each about 20 ms: other programs can slow one down but never speed it up


def measure_peak_rates(
    compiler: Compiler, thread_pool: ThreadPool, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    """Return the best rates of several short measurements: bytes read a second, and operations (two a multiply-add) a
    second; of reading the median as well. Of one thread, `clock` may be its own time."""
    memory = Region(STREAM_BYTES + 4096)
    memory.array[::4096] = 1
    target = compiler.target

    def times(entry: KernelEntry) -> list[float]:
        cells = CellTable()
        own: list[Region] = []
        table = assemble([entry], compiler, cells, own, thread_pool.threads)
        return _times(lambda: thread_pool.run(table), clock)

    blocks = STREAM_BYTES // BLOCK
    reads = times(
        KernelEntry(
            stream(target),
            {"source": memory.address},
            Cell("blocks", blocks),
            grain=blocks // (16 * thread_pool.threads),
        )
    )
    share = TURNS // 16
    rates = [
        2
        * CHAINS
        * TURNS
        * thread_pool.threads
        * width
        / min(times(KernelEntry(kernel, {"unused": 0}, Cell("turns", TURNS * thread_pool.threads), grain=share)))
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
