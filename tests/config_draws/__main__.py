"""Compares random configurations of all classes, or of those named, with transformers, and prints a tally.

PYTHONPATH=src:tests python -m config_draws [--count N] [--start N] [--gguf] [--out FILE] [CLASS ...]
"""

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict


def main() -> int:
    options = argparse.ArgumentParser(prog="config_draws")
    options.add_argument("classes", nargs="*")
    options.add_argument("--count", type=int, default=11, help="draws of each class")
    options.add_argument("--start", type=int, default=0, help="number of the first draw")
    options.add_argument("--gguf", type=int, default=0, help="send each draw whose number is a multiple through GGUF")
    options.add_argument("--part", default="0/1", help="I/N: every Nth class from the Ith on")
    options.add_argument("--out", help="a file for one JSON line a draw")
    options.add_argument("--seconds", type=float, default=1e9, help="stop after")
    chosen = options.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.CRITICAL)
    from config_draws.comparison import bases, classes, draw

    first, parts = map(int, chosen.part.split("/"))
    names = chosen.classes or classes()[first::parts]
    known = bases()
    tally: Counter[str] = Counter()
    began = time.time()
    sink = open(chosen.out, "a") if chosen.out else None
    for name in names:
        if name not in known:
            print(f"{name}: no base configuration")
            continue
        for index in range(chosen.start, chosen.start + chosen.count):
            if time.time() - began > chosen.seconds:
                break
            found = draw(name, index, gguf=bool(chosen.gguf) and index % chosen.gguf == 0)
            tally[found.verdict] += 1
            tally["tries discarded"] += found.discarded
            if found.gguf:
                tally[f"gguf {found.gguf.partition(':')[0]}"] += 1
            if found.verdict not in ("equal", "refused"):
                print(f"{name} {index} {found.form} {found.verdict}: {found.message or found.gguf}\n    {found.changes}", flush=True)
            if sink:
                sink.write(json.dumps(asdict(found)) + "\n")
                sink.flush()
    print(f"{dict(tally)} in {time.time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
