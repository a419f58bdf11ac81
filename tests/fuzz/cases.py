"""A case: a seed, damaged, and one target, all drawn from one source of chance; and what running it cost."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz import mutations, targets
from fuzz.seeds import WRITERS, Seed, make

MEMORY_BYTES = 100 << 20  # that a case may take, and twice its files
SECONDS = 5.0  # of this process's CPU time that a case may take, and more for each megabyte
SECONDS_PER_MB = 2.0

_seeds: dict[str, Seed] = {}


@dataclass(frozen=True)
class Outcome:
    """What a case was, whether the target took the damaged model, and what it cost; `fault` is None if all is well."""

    seed: str
    target: str
    taken: bool
    files_bytes: int
    seconds: float
    memory_bytes: int | None
    fault: str | None
    changed: dict[str, bytes]


def seed(name: str) -> Seed:
    """A seed, made once."""
    if name not in _seeds:
        _seeds[name] = make(name)
    return _seeds[name]


def run_case(random: Random, *, measured: bool = True, only: str | None = None) -> Outcome:
    """Draw a case and run it. `only` fixes the seed."""
    model = seed(only or random.choice(sorted(WRITERS)))
    changed = mutations.damaged(dict(model.files), random)
    target = random.choice(targets.suitable(model.name) if random.random() < 0.9 else targets.names())
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        sound, broken = model.written(folder / "sound"), model.written(folder / "damaged", changed)
        (folder / "out").mkdir()
        (folder / "text").write_text("a b ab " * 20)
        other = seed("dense").written(folder / "model")
        places = {"FILE": broken, "SOUND": sound, "MODEL": other, "TEXT": folder / "text", "OUT": folder / "out"}
        nbytes = sum(len(content) for content in (model.files | changed).values())
        if measured:
            forget_peak()
        before, began = resident(), time.process_time()
        fault, shown, taken = None, target, False
        try:
            shown, taken = targets.run(target, model.name, places, random)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        seconds, after = time.process_time() - began, peak()
    memory = max(0, after - before) if measured and after is not None and before is not None else None
    if fault is None and seconds > SECONDS + SECONDS_PER_MB * nbytes / 1e6:
        fault = f"took {seconds:.1f} s of CPU time for {nbytes} bytes"
    if fault is None and memory is not None and memory > MEMORY_BYTES + 2 * nbytes:
        fault = f"took {memory / 1e6:.0f} MB of memory for {nbytes} bytes"
    return Outcome(model.name, shown, taken, nbytes, seconds, memory, fault, changed)


def forget_peak() -> None:
    """Let the system count this process's peak of memory anew (Linux)."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def resident() -> int | None:
    """Bytes of memory that this process holds now; None where the system does not say so."""
    return _status("VmRSS")


def peak() -> int | None:
    """The most that it held since `forget_peak`."""
    return _status("VmHWM")


def _status(key: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), None)
