"""Measurement of the peak rates of this machine, now: reading memory and multiplying, with the pool's threads."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from sporelm.backends.cpu.cpu_program import CellTable, assemble
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.lowering.emitter import Cell, KernelEntry
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from sporelm.backends.cpu.targets.cpu_target import SIGNED
from sporelm.backends.cpu.targets.tiles import TileSize
from sporelm.backends.cpu.tuning.peak_kernels import BLOCK, CHAINS, ROW_BYTES, WORDS, dots, fmas, stream

STREAM_BYTES = 256 << 20  # exceeds any cache
STREAM_PREFETCHES = (0, 2048)  # prefetch distances tried when read bandwidth is measured; the faster counts
TURNS = 200_000
DOT_OPERATIONS = 1 << 28  # in 32-bit lanes, of one measurement
L1_BYTES = 8 << 10  # bytes of weights that the products of a measurement multiply, which the nearest cache holds
DOT_TILES: tuple[TileSize, ...] = ((1, 10), (2, 2), (2, 4))
PAIR_TILE: TileSize = (2, 4)  # of products of 16 bits
# Rates by the bits of a weight, and the greatest bytes of such weights. The first serves for all where a target
# multiplies all bytes by one instruction, and on the portable target.
DOT_CLASSES = {
    "int8_dot_ops_s": 15,
    "int8_dot_5bit_ops_s": 31,
    "int8_dot_6bit_ops_s": 63,
    "int8_dot_8bit_ops_s": SIGNED,
}
REPEATS = 12  # of each measurement, each about 20 ms: other programs can slow one down but never speed it up


def measure_peak_rates(
    compiler: Compiler, thread_pool: ThreadPool, clock: Callable[[], float] = perf_counter
) -> dict[str, float]:
    """Return the best rates of several short measurements: bytes read a second, and operations (two a multiply-add) a
    second; of reading the median as well. Of one thread, `clock` may be its own time."""
    target = compiler.target
    reads = _time_reads(compiler, thread_pool, clock)
    weights = Region(L1_BYTES)
    rows = Region(ROW_BYTES * max(tokens for _, tokens in (*DOT_TILES, PAIR_TILE)))
    for region in (weights, rows):
        region.array[:] = 1  # untouched pages would share one page of zeros, which slows loads down
    rates = {
        "stream_bytes_s": STREAM_BYTES / min(reads),
        "stream_median_bytes_s": STREAM_BYTES / median(reads),
    }

    def rate(kernel: Kernel, fields: dict[str, int], operations: int, count: int) -> float:
        """Return operations a second of all threads, given those of one of `count` turns of each thread."""
        entry = KernelEntry(kernel, fields, Cell("turns", count * thread_pool.threads), grain=max(1, count // 16))
        return operations * count * thread_pool.threads / min(_time_entry(entry, compiler, thread_pool, clock))

    def dot_rate(largest: int, tile: TileSize, is_wide: bool) -> float:
        panels, tokens = tile
        block = panels * 4 * target.lanes * WORDS * (1 + is_wide)
        blocks = L1_BYTES // block
        operations = 2 * 32 * target.lanes * panels * tokens * blocks
        fields = {"source": weights.address, "rows": rows.address, "blocks": blocks}
        turns = max(1, DOT_OPERATIONS * target.lanes // operations)
        return rate(dots(target, largest, tile, is_wide=is_wide), fields, operations, turns)

    for name, largest in DOT_CLASSES.items():
        if largest == 15 or (target.folds_to == 0 and target.fused):
            found = [dot_rate(largest, tile, False) for tile in DOT_TILES]
            if largest == SIGNED:
                found.append(dot_rate(largest, PAIR_TILE, True))
            rates[name] = max(found)
    rates["f32_ops_s"] = rate(fmas(target), {"unused": 0}, 2 * CHAINS * target.lanes, TURNS)
    return rates


def measure_stream(compiler: Compiler, thread_pool: ThreadPool) -> float:
    """Return the current read bandwidth of all threads in bytes per second: the median of several reads."""
    return STREAM_BYTES / median(_time_reads(compiler, thread_pool, perf_counter))


def _time_reads(compiler: Compiler, thread_pool: ThreadPool, clock: Callable[[], float]) -> list[float]:
    """Return the seconds that each of several reads of STREAM_BYTES takes, with the faster prefetch distance.

    The memory uses large pages, as weights do.
    """
    memory = Region(STREAM_BYTES + 4096, huge=True)
    memory.array[::4096] = 1
    blocks = STREAM_BYTES // BLOCK
    grain = blocks // (16 * thread_pool.threads)
    entries = [
        KernelEntry(stream(compiler.target, ahead), {"source": memory.address}, Cell("blocks", blocks), grain=grain)
        for ahead in STREAM_PREFETCHES
    ]
    return min((_time_entry(entry, compiler, thread_pool, clock) for entry in entries), key=median)


def _time_entry(
    entry: KernelEntry, compiler: Compiler, thread_pool: ThreadPool, clock: Callable[[], float]
) -> list[float]:
    """Return the seconds of several runs of an entry."""
    cells = CellTable()  # the table refers to it and to the regions: both stay alive
    own: list[Region] = []
    table = assemble([entry], compiler, cells, own, thread_pool.threads)
    return _times(lambda: thread_pool.run(table), clock)


def _times(work: Callable[[], None], clock: Callable[[], float]) -> list[float]:
    """Return the seconds that each of several repetitions takes, after an untimed warm-up run."""
    work()
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return times
