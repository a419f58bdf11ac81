"""Compares random configurations of all classes, or of those named, with transformers, and prints a tally.

PYTHONPATH=src:tests python -m config_draws [--count N] [--start N] [--gguf N] [--single] [--out FILE] [CLASS ...]
"""

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any


def parsed() -> argparse.Namespace:
    """The options."""
    options = argparse.ArgumentParser(prog="config_draws")
    options.add_argument("classes", nargs="*", help="those of transformers; all that are read by default")
    options.add_argument("--count", type=int, default=10, help="draws of each class")
    options.add_argument("--start", type=int, default=0, help="number of the first draw")
    options.add_argument("--gguf", type=int, default=0, help="send each draw whose number is a multiple through GGUF")
    options.add_argument("--part", default="0/1", help="I/N: every Nth class from the Ith on")
    options.add_argument("--single", action="store_true", help="each field at 0, 1 and null in place of random draws")
    options.add_argument("--out", help="a file for one JSON line a draw")
    return options.parse_args()


def quiet() -> None:
    """Stop transformers from reporting, and from looking for a network."""
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.CRITICAL)


def results(chosen: argparse.Namespace) -> Iterator[Any]:
    """Each comparison as it is done."""
    from config_draws.bases import bases, classes
    from config_draws.comparison import compare_single, draw, single_changes

    first, parts = map(int, chosen.part.split("/"))
    for name in chosen.classes or classes()[first::parts]:
        if name not in bases():
            print(f"{name}: no base configuration")
        elif chosen.single:
            for number, change in enumerate(single_changes(name)):
                yield compare_single(name, number, change)
        else:
            for index in range(chosen.start, chosen.start + chosen.count):
                yield draw(name, index, gguf=bool(chosen.gguf) and index % chosen.gguf == 0)


def main() -> int:
    """Return 1 if a draw was silently different, refused without a key's name, or failed otherwise."""
    chosen = parsed()
    quiet()
    tally: Counter[str] = Counter()
    faults, began = 0, time.time()
    for found in results(chosen):
        tally[found.verdict] += 1
        tally["tries discarded"] += found.discarded
        if found.gguf:
            tally[f"gguf {found.gguf.partition(':')[0]}"] += 1
        if found.verdict not in ("equal", "refused", "discarded"):
            faults += 1
            print(f"{found.name} {found.index} {found.form} {found.verdict}: {found.message or found.gguf}")
            print(f"    {found.changes}", flush=True)
        if chosen.out:
            with Path(chosen.out).open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(found)) + "\n")
    print(f"{dict(tally)} in {time.time() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
