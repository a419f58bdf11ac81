"""The native loops of the thread team: run a list of kernels, wait at a barrier, wait for the next step.

A step is a table of entries, each a kernel over a number of items. Every thread has an equal run of neighbouring items,
which it takes in chunks; one that is done takes chunks from the others, so that a thread whose core is busy elsewhere
does less. Chained entries run over the same chunk, one after the other, without a barrier between.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.jit.values import i32, i64, pointer

# an entry: 8-byte fields
ENTRY = 80
FN, DESC, COUNT, FACTOR, GRAIN, CHAIN, GUARD, GUARD_LOW, GUARD_HIGH = range(0, 72, 8)

# the team's shared memory: one cache line each, then a line a thread (parked flag, its lock);
# counters have a line an entry and thread
LINE = 64
GENERATION, ARRIVED, PHASE, JOB, STOP, SYSTEM = range(0, 6 * LINE, LINE)
JOB_TABLE, JOB_ENTRIES, JOB_COUNTERS, JOB_THREADS, JOB_TIMES = range(JOB, JOB + 40, 8)
YIELD, ACQUIRE, RELEASE = SYSTEM, SYSTEM + 8, SYSTEM + 16  # addresses of functions of the system and of Python
PARKED = 512
LOCK = 8  # in a thread's line

# Parking is Dekker's pattern: a worker sets its flag and looks at the generation, a launcher raises the generation and
# looks at the flags. One of the two must see the other, which only sequential consistency promises.
TOTAL = "seq_cst"


class StepLoops:
    """Functions of the team, traced into one module: to run a step, to serve as a worker, to launch a step.

    What `TimedLoops` writes down, these do not know of: its places are methods that emit nothing here.
    """

    kind = "team_steps"
    is_timed = False

    def __init__(self, spins: int, patience: int) -> None:
        self.spins, self.patience = spins, patience  # turns before a barrier yields; turns before a worker parks
        self.name = f"{self.kind}_{spins}_{patience}"

    def build(self, module: ir.Module, target: Any) -> None:
        run = Builder(module, self.name, {"team": pointer, "thread": i64, "scratch": pointer}, target)
        self._run_step(run)
        run.finish()
        serve = Builder(module, f"{self.name}_serve", {"team": pointer, "thread": i64, "scratch": pointer}, target)
        self._serve(serve, run.function)
        serve.finish()
        job = {"team": pointer, "scratch": pointer, "table": i64, "entries": i64, "counters": i64}
        launch = Builder(module, f"{self.name}_launch", job, target)
        self._launch(launch, run.function)
        launch.finish()

    def _wait(self, k: Builder, spun: Any, team: Val) -> None:
        """One turn of a spin loop: pause, and once patience is out give the core to whoever wants it."""
        spun.set(spun.value + 1)
        k.target.pause(k)
        with k.when(spun.value > self.spins):
            k.call_address(k.load(i64, team, YIELD))

    def _barrier(self, k: Builder, team: Val, threads: Val, counters: Val | None) -> None:
        """All threads arrive; the last one resets the counters of the entry they leave, if any."""
        phase = k.atomic_load(team, PHASE)
        last = (k.atomic("add", team, ARRIVED, 1) + 1).equals(threads)
        with k.ir.if_else(last.raw) as (is_last, waits):
            with is_last:
                if counters is not None:
                    with k.range(threads) as owner:
                        k.store(k.index(0), counters, owner * LINE)
                k.atomic("xchg", team, ARRIVED, 0)
                k.atomic("add", team, PHASE, 1)
            with waits:
                spun = k.var(k.index(0))
                with k.loop_while(lambda: k.atomic_load(team, PHASE).equals(phase)):
                    self._wait(k, spun, team)

    def _run_step(self, k: Builder) -> None:
        team, thread, scratch = (k.arguments[name] for name in ("team", "thread", "scratch"))
        table, counters = k.load_pointer(team, JOB_TABLE), k.load_pointer(team, JOB_COUNTERS)
        entries, threads = k.load(i64, team, JOB_ENTRIES), k.load(i64, team, JOB_THREADS)
        index = k.var(k.index(0))
        with k.loop_while(lambda: index.value < entries):
            entry, own = k.at(table, index.value * ENTRY), k.at(counters, index.value * threads * LINE)
            guard = k.load(i64, k.load_pointer(entry, GUARD))
            inside = k.select(guard >= k.load(i64, entry, GUARD_LOW), k.index(1), k.index(0))
            inside = inside & k.select(guard <= k.load(i64, entry, GUARD_HIGH), k.index(1), k.index(0))
            items = k.load(i64, k.load_pointer(entry, COUNT)) * k.load(i64, entry, FACTOR) * inside
            following = k.load(i64, entry, CHAIN) + 1
            with k.when(items > 0):
                times = self._entered(k, team, thread, entries, index.value)
                with k.range(threads) as turn:
                    owner = thread + turn
                    owner = k.select(owner >= threads, owner - threads, owner)
                    start, stop = items * owner // threads, items * (owner + 1) // threads
                    self._chunks(k, entry, k.at(own, owner * LINE), start, stop, scratch, times)
                self._left(k, times)
                self._barrier(k, team, threads, own)
            index.set(index.value + following)
        # Nobody may look at the table or its cells (guards past the last entry that ran) once the launcher returns.
        with k.when(entries > 0):
            self._barrier(k, team, threads, None)

    def _entered(self, k: Builder, team: Val, thread: Val, entries: Val, index: Val) -> Any:
        """A thread begins an entry, and those chained to it; where it writes down the times."""

    def _left(self, k: Builder, times: Any) -> None:
        """A thread finds no more items of an entry."""

    def _called(self, k: Builder, times: Any, link: Val, call: Callable[[], None]) -> None:
        """Emit a call of the kernel that is `link` places further in a chain."""
        call()

    def _chunks(self, k: Builder, entry: Val, counter: Val, start: Val, stop: Val, scratch: Val, times: Any) -> None:
        """Take chunks of the items start..stop until there are none."""
        grain, chain = k.load(i64, entry, GRAIN), k.load(i64, entry, CHAIN)
        first = k.var(start + k.atomic("add", counter, 0, grain, "monotonic"))
        with k.loop_while(lambda: first.value < stop):
            last = k.min(first.value + grain, stop)
            with k.range(chain + 1) as link:
                at = k.at(entry, link * ENTRY)
                kernel = k.load(i64, at, FN), k.load_pointer(at, DESC)
                self._called(k, times, link, partial(k.call_address, *kernel, first.value, last, scratch))
            first.set(start + k.atomic("add", counter, 0, grain, "monotonic"))

    def _serve(self, k: Builder, run_step: Any) -> None:
        """A worker: run steps as they come, asleep when none came for a while; return when the team stops.

        Before it sleeps it says that it is parked; whoever launches the next step takes that word back and then owes it
        exactly one release of its lock.
        """
        team, thread, scratch = (k.arguments[name] for name in ("team", "thread", "scratch"))
        serving, seen, spun = k.var(k.index(1)), k.zero(i64), k.zero(i64)
        with k.loop_while(lambda: serving.value.equals(1)):
            now = k.atomic_load(team, GENERATION)
            with k.ir.if_else(now.differs(seen.value).raw) as (fresh, idle):
                with fresh:
                    seen.set(now)
                    serving.set(k.index(1) - k.atomic_load(team, STOP))
                    with k.when(serving.value.equals(1)):
                        k.ir.call(run_step, [team.raw, thread.raw, scratch.raw])
                    spun.set(k.index(0))
                with idle:
                    self._wait(k, spun, team)
                    with k.when(spun.value > self.patience):
                        self._park(k, team, k.at(team, thread * LINE + PARKED), now)
                        spun.set(k.index(0))

    def _park(self, k: Builder, team: Val, line: Val, now: Val) -> None:
        """Sleep until the next launch, unless a step came since generation `now` was looked at."""
        k.atomic("xchg", line, 0, 1, TOTAL)
        sleeps = k.var(k.index(1))
        with k.when(k.atomic_load(team, GENERATION, TOTAL).differs(now)):
            # a step came meanwhile: go on, unless its launcher already owes us a wake-up
            sleeps.set(k.select(k.compare_exchange(line, 0, 1, 0, TOTAL), k.index(0), k.index(1)))
        with k.when(sleeps.value.equals(1)):
            k.call_address(k.load(i64, team, ACQUIRE), k.load_pointer(line, LOCK), k.const(i32, 1))

    def _launch(self, k: Builder, run_step: Any) -> None:
        """Start a step, wake the workers that sleep, and take part in it.

        All in one call: an exception of Python (Ctrl-C) comes before the step or after it, never in between.
        """
        team = k.arguments["team"]
        self._launched(k, team, ended=False)
        for name, place in (("table", JOB_TABLE), ("entries", JOB_ENTRIES), ("counters", JOB_COUNTERS)):
            k.store(k.arguments[name], team, place)
        k.atomic("add", team, GENERATION, 1, TOTAL)
        with k.range(1, k.load(i64, team, JOB_THREADS)) as thread:
            line = k.at(team, thread * LINE + PARKED)
            with k.when(k.compare_exchange(line, 0, 1, 0, TOTAL)):
                k.call_address(k.load(i64, team, RELEASE), k.load_pointer(line, LOCK))
        k.ir.call(run_step, [team.raw, k.index(0).raw, k.arguments["scratch"].raw])
        self._launched(k, team, ended=True)

    def _launched(self, k: Builder, team: Val, *, ended: bool) -> None:
        """A step begins, or has ended."""
