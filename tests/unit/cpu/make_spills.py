"""Counts the vectors that hot kernels spill on this CPU's targets and writes spills.json, for test_assembly.

From the repository's root: PYTHONPATH=src:tests python tests/unit/cpu/make_spills.py
"""

import json
import tempfile
from pathlib import Path

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.cpu.jit.cache import ObjectCache
from unit.cpu.test_assembly import BITS, KNOWN, SPILL, hot


def counted() -> dict[str, dict[str, int]]:
    """Spills by target and kernel, those without left out; of a target that this CPU lacks, what was known."""
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, bits in BITS.items():
            target = targets.available().get(name)
            if target is None:
                found[name] = KNOWN[name]
                continue
            compiler = Compiler(target, ObjectCache(Path(folder) / "kernels"))
            counts = {kernel.name: len(SPILL[bits].findall(compiler.assembly(kernel))) for kernel in hot(target)}
            found[name] = {kernel: count for kernel, count in counts.items() if count}
    return found


if __name__ == "__main__":
    counts = counted()
    for name, kernels in counts.items():
        for kernel in sorted(kernels.keys() | KNOWN[name].keys()):
            before, now = KNOWN[name].get(kernel, 0), kernels.get(kernel, 0)
            if before != now:
                print(f"{name} {kernel}: {before} -> {now}")
    Path(__file__).with_name("spills.json").write_text(json.dumps(counts, indent=1) + "\n", "utf-8")
