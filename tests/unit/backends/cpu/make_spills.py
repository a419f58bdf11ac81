"""Counts the vectors that hot kernels spill and writes spills.json, for test_assembly.

From the repository's root: PYTHONPATH=src:tests python tests/unit/backends/cpu/make_spills.py
"""

import json
from pathlib import Path

from unit.backends.cpu.spill_counts import BITS, KNOWN, MADE_FOR, SPILL, assembly_of, hot


def counted() -> dict[str, dict[str, int]]:
    """Spills by target and kernel, those without left out."""
    found: dict[str, dict[str, int]] = {}
    for name, bits in BITS.items():
        names = [kernel.name for kernel in hot(MADE_FOR[name])]
        counts = {kernel: len(SPILL[bits].findall(assembly_of(name, kernel))) for kernel in names}
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
