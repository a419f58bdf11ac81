"""The native loops of the thread pool: process a list of kernels, wait for other threads, wait for the next step.

A step is a table of entries, each a kernel over a number of items. The pool processes one entry at a time. The entry is
posted in the pool's memory under an epoch, a number that only grows. Every thread has an equal run of neighbouring
items, which it claims in chunks; a thread without work left claims chunks of other runs. An entry ends when all its
items are done; the thread that finishes the last one posts the next entry. So a preempted thread delays the others only
while it holds a chunk. Chained entries run over the same chunk, one after the other.

Claims carry the epoch. A late thread, perhaps by several steps, reads only the pool's memory until a claim succeeds,
and a claim succeeds only while its entry is posted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.jit.ssa_values import Var, i32, i64, pointer

# an entry: 8-byte fields
ENTRY = 80
FN, DESC, COUNT, FACTOR, GRAIN, CHAIN, GUARD, GUARD_LOW, GUARD_HIGH = range(0, 72, 8)

# the pool's shared memory: cache lines that all threads use
LINE = 64
EPOCH, DONE, JOB, SLEEP, SYSTEM, RATE = range(0, 6 * LINE, LINE)
JOB_TABLE, JOB_ENTRIES, JOB_THREADS, JOB_TIMES = range(JOB, JOB + 32, 8)
STOP, SLEEPERS = SLEEP, SLEEP + 8
YIELD, ACQUIRE, RELEASE = range(SYSTEM, SYSTEM + 24, 8)  # functions of the system and of Python
# two alternating posts, in the epoch's cache line; a post stays valid until its slot is used again two epochs later
POSTS, POST = EPOCH + 8, 24
POST_ENTRY, POST_ITEMS, POST_GRAIN = range(0, POST, 8)
# and three cache lines for each thread: its sleep flag and lock, its claims, its timings
THREAD_LINES = 6 * LINE
PARKED, LOCK = 0, 8
CLAIMED = LINE
WORKED, LEFT = 2 * LINE, 2 * LINE + 8
THREAD = 3 * LINE

CLAIM_BITS = 20  # the low bits of a claim count the taken chunks of a thread's run; the others are the epoch
FEW_TURNS = 16  # iterations of a waiting loop before it reads the clock
MAX_EPOCH = 1 << (62 - CLAIM_BITS)  # the highest epoch at which a step may begin; the rest is for its entries
MAX_CHUNKS = 1 << (CLAIM_BITS - 1)  # of a thread's run

# Parking is Dekker's pattern: a thread sets its flag, then reads the epoch; a posting thread raises the epoch, then
# reads the flags. One of the two must see the other's write, which only sequential consistency guarantees.
TOTAL = "seq_cst"


class WaitPolicy(NamedTuple):
    """When waiting threads yield their core, and when they sleep.

    spins      iterations of an idle worker's loop before it begins to yield its core
    patience   iterations before it sleeps
    overdue    microseconds for which a thread that has finished its share of an entry spins before it begins to yield;
               without a CPU counter, `spins` and `patience` apply instead
    parts, cap it sleeps after yielding for `parts` times the duration of its own share, at most `cap` microseconds
    """

    spins: int = 4000
    patience: int = 30000
    overdue: int = 30
    parts: int = 4
    cap: int = 200


class StepLoops:
    """The functions of the pool, traced into one module: process an entry, serve as a worker, launch a step.

    `TimedLoops` overrides the methods that emit nothing here to record times.
    """

    kind = "pool_steps"
    is_timed = False

    def __init__(self, waiting: WaitPolicy) -> None:
        self.waiting = waiting
        self.name = f"{self.kind}_{'_'.join(map(str, waiting))}"

    def build(self, module: ir.Module, target: Any) -> None:
        post = Builder(module, f"{self.name}_post", {"pool": pointer, "index": i64}, target)
        self._post(post)
        post.finish()
        part = {"pool": pointer, "thread": i64, "scratch": pointer}
        work = Builder(module, self.name, part | {"epoch": i64}, target)
        self._process_entry(work, post.function)
        work.finish()
        serve = Builder(module, f"{self.name}_serve", part, target)
        self._serve(serve, work.function)
        serve.finish()
        job = {"pool": pointer, "scratch": pointer, "table": i64, "entries": i64}
        launch = Builder(module, f"{self.name}_launch", job, target)
        self._launch(launch, work.function, post.function)
        launch.finish()
        clock = Builder(module, f"{self.name}_clock", {"place": pointer}, target)
        clock.store(clock.target.ticks(clock), clock.arguments["place"])
        clock.finish()

    # ---- entries

    def _post(self, k: Builder) -> None:
        """Post the first entry from `index` on that has items, or the end of the step, and wake sleeping threads."""
        pool, first = k.arguments["pool"], k.arguments["index"]
        table, entries = k.load_pointer(pool, JOB_TABLE), k.load(i64, pool, JOB_ENTRIES)
        index, items, searching = k.var(first), k.zero(i64), k.var(k.select(first < entries, k.index(1), k.index(0)))
        with k.loop_while(lambda: searching.value.equals(1)):
            entry = k.at(table, index.value * ENTRY)
            guard = k.load(i64, k.load_pointer(entry, GUARD))
            inside = k.select(guard >= k.load(i64, entry, GUARD_LOW), k.index(1), k.index(0))
            inside = inside & k.select(guard <= k.load(i64, entry, GUARD_HIGH), k.index(1), k.index(0))
            items.set(k.load(i64, k.load_pointer(entry, COUNT)) * k.load(i64, entry, FACTOR) * inside)
            with k.when(items.value <= 0):
                items.set(k.index(0))
                index.set(index.value + k.load(i64, entry, CHAIN) + 1)
            more = k.select(index.value < entries, k.index(1), k.index(0))
            searching.set(k.select(items.value.equals(0), more, k.index(0)))
        post = k.at(pool, (k.atomic_load(pool, EPOCH) + 1 & 1) * POST + POSTS)
        with k.when(items.value > 0):
            entry = k.at(table, index.value * ENTRY)
            # in large entries chunks grow, so that their count fits into claims
            grain = k.max(k.load(i64, entry, GRAIN), items.value // MAX_CHUNKS)
            k.atomic_store(k.address_of(entry), post, POST_ENTRY)
            k.atomic_store(grain, post, POST_GRAIN)
        k.atomic_store(items.value, post, POST_ITEMS)
        k.atomic_store(k.index(0), pool, DONE)
        k.atomic("add", pool, EPOCH, 1, TOTAL)
        with (
            k.when(k.atomic_load(pool, SLEEPERS, TOTAL) > 0),
            k.range(k.load(i64, pool, JOB_THREADS)) as thread,
        ):
            line = k.at(pool, thread * THREAD + THREAD_LINES)
            with k.when(k.compare_exchange(line, PARKED, 1, 0, TOTAL)):
                k.atomic("sub", pool, SLEEPERS, 1, TOTAL)
                k.call_address(k.load(i64, pool, RELEASE), k.load_pointer(line, LOCK))

    def _process_entry(self, k: Builder, post_next: Any) -> None:
        """Claim and process chunks of an epoch's entry until none are left; after the last one post the next entry.

        Record the duration and the end of the thread's work.
        """
        pool, thread, scratch, epoch = (k.arguments[name] for name in ("pool", "thread", "scratch", "epoch"))
        own, threads = k.at(pool, thread * THREAD + THREAD_LINES), k.load(i64, pool, JOB_THREADS)
        post = k.at(pool, (epoch & 1) * POST + POSTS)
        address, items = k.atomic_load(post, POST_ENTRY), k.atomic_load(post, POST_ITEMS)
        grain = k.atomic_load(post, POST_GRAIN)
        items = k.select(k.atomic_load(pool, EPOCH).equals(epoch), items, k.index(0))  # else the values are mixed
        entry = k.pointer_to(address)
        began, taken = k.target.ticks(k), k.zero(i64)

        def do_chunk(first: Val, last: Val) -> None:
            self._chunk(k, pool, thread, scratch, entry, first, last)
            taken.set(taken.value + last - first)

        with k.range(k.select(items > 0, threads, k.index(0))) as turn:
            owner = thread + turn
            owner = k.select(owner >= threads, owner - threads, owner)
            run = items * owner // threads, items * (owner + 1) // threads
            claims = k.at(pool, owner * THREAD + (THREAD_LINES + CLAIMED))
            self._claim(k, claims, epoch << CLAIM_BITS, run, grain, do_chunk)
        now = k.target.ticks(k)
        k.store(now - began, own, WORKED)
        k.store(now, own, LEFT)

        def is_last() -> Val:
            return (k.atomic("add", pool, DONE, taken.value) + taken.value).equals(items)

        with k.when(k.both(taken.value > 0, is_last)):
            index = k.distance(k.load_pointer(pool, JOB_TABLE), entry) // ENTRY
            k.ir.call(post_next, [pool.raw, (index + k.load(i64, entry, CHAIN) + 1).raw])

    def _claim(
        self, k: Builder, claims: Val, base: Val, run: tuple[Val, Val], grain: Val, do: Callable[[Val, Val], None]
    ) -> None:
        """Claim and process chunks of a thread's run until none are left."""
        start, stop = run
        # below base: nothing is claimed yet; more than MAX_CHUNKS above: a later epoch, so past the run's end
        claim = k.var(k.atomic_load(claims, order="monotonic"))

        def first() -> Val:
            return start + k.max(claim.value - base, 0) * grain

        with k.loop_while(lambda: first() < stop):
            begin, following = first(), k.max(claim.value, base) + 1
            with k.ir.if_else(k.compare_exchange(claims, 0, claim.value, following).raw) as (claimed, failed):
                with claimed:
                    do(begin, k.min(begin + grain, stop))
                    claim.set(following)
                with failed:
                    claim.set(k.atomic_load(claims, order="monotonic"))

    def _chunk(self, k: Builder, pool: Val, thread: Val, scratch: Val, entry: Val, first: Val, last: Val) -> None:
        """Run an entry, and its chained entries, over the items first..last."""
        times = self._record_chunk_start(k, pool, thread, entry)
        with k.range(k.load(i64, entry, CHAIN) + 1) as link:
            at = k.at(entry, link * ENTRY)
            kernel = k.load(i64, at, FN), k.load_pointer(at, DESC)
            self._record_call(k, times, link, partial(k.call_address, *kernel, first, last, scratch))
        self._record_chunk(k, times)

    def _record_chunk_start(self, k: Builder, pool: Val, thread: Val, entry: Val) -> Any:
        """Note that a thread begins a chunk of an entry and its chained entries, and return where it records the
        times."""

    def _record_chunk(self, k: Builder, times: Any) -> None:
        """Note that a thread has finished a chunk."""

    def _record_call(self, k: Builder, times: Any, link: Val, call: Callable[[], None]) -> None:
        """Emit a call of the kernel that is `link` positions further in a chain."""
        call()

    # ---- waiting

    def _wait(self, k: Builder, pool: Val, thread: Val, epoch: Val, *, idle: bool) -> None:
        """Wait for the next epoch.

        idle: no step is running. The next step usually comes soon: spin, then yield the core for a while, then sleep.
        During a step other threads are at their last chunks, which take no longer than this thread's own part of the
        entry. A thread that takes longer was interrupted: yield, then sleep, as it may need this core.
        """
        line = k.at(pool, thread * THREAD + THREAD_LINES)
        spun, has_clock = k.zero(i64), k.load(i64, pool, RATE) > 0
        with k.loop_while(lambda: k.atomic_load(pool, EPOCH).equals(epoch)):
            spun.set(spun.value + 1)
            k.target.pause(k)
            if idle:
                self._give_way_by_turns(k, pool, line, epoch, spun)
            else:
                with k.ir.if_else(has_clock.raw) as (by_clock, by_turns):
                    with by_clock:
                        self._give_way_by_clock(k, pool, line, epoch, spun)
                    with by_turns:
                        self._give_way_by_turns(k, pool, line, epoch, spun)

    def _give_way_by_turns(self, k: Builder, pool: Val, line: Val, epoch: Val, spun: Var) -> None:
        """Yield the core, or sleep, after a number of iterations."""
        with k.when(spun.value > self.waiting.spins):
            k.call_address(k.load(i64, pool, YIELD))
        with k.when(spun.value > self.waiting.patience):
            self._park(k, pool, line, epoch)
            spun.set(k.index(0))

    def _give_way_by_clock(self, k: Builder, pool: Val, line: Val, epoch: Val, spun: Var) -> None:
        """Yield the core when the other threads are overdue, then sleep."""
        rate, waiting = k.load(i64, pool, RATE), self.waiting
        overdue = rate * waiting.overdue // 1000
        longest = k.min(k.load(i64, line, WORKED) * waiting.parts, rate * waiting.cap // 1000)
        with k.when(spun.value > FEW_TURNS):
            waited = k.target.ticks(k) - k.load(i64, line, LEFT)
            with k.when(waited > overdue):
                k.call_address(k.load(i64, pool, YIELD))
            with k.when(waited > overdue + longest):
                self._park(k, pool, line, epoch)

    def _park(self, k: Builder, pool: Val, line: Val, now: Val) -> None:
        """Sleep until the next post, unless one came since epoch `now` was read."""
        k.atomic("add", pool, SLEEPERS, 1, TOTAL)
        k.atomic("xchg", line, PARKED, 1, TOTAL)
        sleeps = k.var(k.index(1))
        came = k.atomic_load(pool, EPOCH, TOTAL).differs(now)
        # a post came meanwhile: continue, unless the posting thread already owes this thread a wake-up
        with k.when(k.both(came, lambda: k.compare_exchange(line, PARKED, 1, 0, TOTAL))):
            k.atomic("sub", pool, SLEEPERS, 1, TOTAL)
            sleeps.set(k.index(0))
        with k.when(sleeps.value.equals(1)):
            k.call_address(k.load(i64, pool, ACQUIRE), k.load_pointer(line, LOCK), k.const(i32, 1))

    # ---- threads

    def _is_step_over(self, k: Builder, pool: Val, epoch: Val) -> Val:
        """Return whether an epoch has no entry. The result may be false for a past epoch."""
        post = k.at(pool, (epoch & 1) * POST + POSTS)
        return k.both(k.atomic_load(post, POST_ITEMS).equals(0), lambda: k.atomic_load(pool, EPOCH).equals(epoch))

    def _serve(self, k: Builder, work: Any) -> None:
        """Serve as a worker: process posted entries, sleep after a period without any; return when the pool stops."""
        pool, thread, scratch = (k.arguments[name] for name in ("pool", "thread", "scratch"))
        serving = k.var(k.index(1))
        with k.loop_while(lambda: serving.value.equals(1)):
            epoch = k.atomic_load(pool, EPOCH)
            with k.ir.if_else(self._is_step_over(k, pool, epoch).raw) as (idle, busy):
                with idle:
                    serving.set(k.index(1) - k.atomic_load(pool, STOP))
                    with k.when(serving.value.equals(1)):
                        self._wait(k, pool, thread, epoch, idle=True)
                with busy:
                    k.ir.call(work, [pool.raw, thread.raw, scratch.raw, epoch.raw])
                    self._wait(k, pool, thread, epoch, idle=False)

    def _launch(self, k: Builder, work: Any, post: Any) -> None:
        """Start a step, wake sleeping workers, and take part in it.

        All happens in one call: a Python exception (Ctrl-C) comes before the step or after it, never in between.
        """
        pool, first = k.arguments["pool"], k.index(0)
        self._record_launch(k, pool, ended=False)
        for name, place in (("table", JOB_TABLE), ("entries", JOB_ENTRIES)):
            k.store(k.arguments[name], pool, place)
        k.ir.call(post, [pool.raw, first.raw])
        running = k.var(k.index(1))
        with k.loop_while(lambda: running.value.equals(1)):
            epoch = k.atomic_load(pool, EPOCH)
            with k.ir.if_else(self._is_step_over(k, pool, epoch).raw) as (over, busy):
                with over:
                    running.set(k.index(0))
                with busy:
                    k.ir.call(work, [pool.raw, first.raw, k.arguments["scratch"].raw, epoch.raw])
                    self._wait(k, pool, first, epoch, idle=False)
        self._record_launch(k, pool, ended=True)

    def _record_launch(self, k: Builder, pool: Val, *, ended: bool) -> None:
        """Note the start or the end of a step."""
