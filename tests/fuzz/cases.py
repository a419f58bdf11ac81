"""One fuzz case: a damaged seed model and a target, drawn from one random source, with its cost."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz import mutations, targets
from fuzz.seeds import WRITERS, Seed, make

MAX_MEMORY_BYTES = 100 << 20  # of a case, besides twice the size of its files
MAX_SECONDS = 5.0  # of CPU time of a case, besides those for each megabyte
SECONDS_PER_MB = 2.0

_seeds: dict[str, Seed] = {}


@dataclass(frozen=True)
class Outcome:
    """The result of a case: seed, target, cost, and the damaged files.

    is_accepted  whether the target accepted the damaged model
    fault        a description of the fault, or None
    """

    seed: str
    target: str
    is_accepted: bool
    files_bytes: int
    seconds: float
    memory_bytes: int | None
    fault: str | None
    changed: dict[str, bytes]


def seed(name: str) -> Seed:
    """Return a seed; each is made once."""
    if name not in _seeds:
        _seeds[name] = make(name)
    return _seeds[name]


def run_case(random: Random, *, measured: bool = True, only: str | None = None) -> Outcome:
    """Draw a case and run it. `only` fixes the seed."""
    model = seed(only or random.choice(sorted(WRITERS)))
    changed = mutations.damage(dict(model.files), random)
    target = random.choice(targets.suitable(model.name) if random.random() < 0.9 else targets.names())
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        sound = model.write(folder / "sound")
        broken = model.write(folder / "damaged", changed)
        (folder / "out").mkdir()
        (folder / "text").write_text("a b ab " * 20)
        other = seed("dense").write(folder / "model")
        places = {"FILE": broken, "SOUND": sound, "MODEL": other, "TEXT": folder / "text", "OUT": folder / "out"}
        nbytes = sum(len(content) for content in (model.files | changed).values())
        if measured:
            reset_peak()
        before, began = resident(), time.process_time()
        fault, shown, is_accepted = None, target, False
        try:
            shown, is_accepted = targets.run(target, model.name, places, random)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        seconds, after = time.process_time() - began, peak()
    memory = max(0, after - before) if measured and after is not None and before is not None else None
    if fault is None and seconds > MAX_SECONDS + SECONDS_PER_MB * nbytes / 1e6:
        fault = f"took {seconds:.1f} s of CPU time for {nbytes} bytes"
    if fault is None and memory is not None and memory > MAX_MEMORY_BYTES + 2 * nbytes:
        fault = f"took {memory / 1e6:.0f} MB of memory for {nbytes} bytes"
    return Outcome(model.name, shown, is_accepted, nbytes, seconds, memory, fault, changed)


def reset_peak() -> None:
    """Reset the peak of this process's memory (Linux)."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def resident() -> int | None:
    """Return the resident bytes of this process; None where the system does not report them."""
    return _status("VmRSS")


def peak() -> int | None:
    """Return the peak of resident bytes since `reset_peak`."""
    return _status("VmHWM")


def _status(key: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), None)
