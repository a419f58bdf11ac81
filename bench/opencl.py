"""The OpenCL back-end beside our CPU back-end and torch: speed of one model, and the time of a start.

Usage: python bench/opencl.py MODEL [--device D] [--dtype f32|f16] [--threads 2] [--repeat 5] [--tokens 64] [--json]
MODEL is a GGUF file or a name of the model store. torch is our torch back-end on the CPU, with the same file.

Rounds alternate: OpenCL, CPU, torch, OpenCL, ... Figures are medians of tokens per second, and a ratio is the median of
the rounds' ratios.

decode   one token at a time after a prompt of 32 tokens
pp512    a prompt of 512 tokens, with the logits of its last one
start    seconds from the beginning of a process to its end after one token: with an empty program cache, and the lower
         of two with it

--json also shows the origin of the figures: time, machine, commit and command.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
from benchmark_script import describe_script, print_json  # noqa: E402

from sporelm import LLM  # noqa: E402
from sporelm.engine import Request  # noqa: E402

PROMPT, LONG_PROMPT, CONTEXT = 32, 512, 1024
START = """
import sys
from sporelm import LLM, SamplingParams
llm = LLM(sys.argv[1], backend="opencl", device=sys.argv[2], dtype=sys.argv[3], max_context=1024, max_batch=1)
llm.generate("Once upon a time", SamplingParams(max_tokens=1, temperature=0.0))
llm.close()
"""


def time_start(model: str, device: str, dtype: str, folder: str) -> float:
    """Return the seconds of a process that loads a model and generates a token, its end included."""
    environment = os.environ | {"SPORE_KERNEL_CACHE": folder, "PYTHONPATH": str(ROOT / "src")}
    began = perf_counter()
    subprocess.run([sys.executable, "-c", START, model, device, dtype], env=environment, check=True)
    return perf_counter() - began


def prefill(llm: LLM, ids: list[int]) -> float:
    engine: Any = llm.engine
    request = engine.add(Request(ids, max_tokens=1))
    began = perf_counter()
    while request.finish_reason is None:
        engine.step()
    return perf_counter() - began


def decode(llm: LLM, ids: list[int], count: int) -> float:
    engine: Any = llm.engine
    request = engine.add(Request(ids, max_tokens=count + 1))
    while not request.num_generated:
        engine.step()
    began = perf_counter()
    while request.finish_reason is None:
        engine.step()
    return perf_counter() - began


def measure(args: argparse.Namespace) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the origin of the figures, and a row for each."""
    shared: dict[str, Any] = {"threads": args.threads, "max_context": CONTEXT, "max_batch": 1}
    sides = {
        "opencl": LLM(args.model, backend="opencl", device=args.device, dtype=args.dtype, **shared),
        "cpu": LLM(args.model, backend="cpu", **shared),
        "torch": LLM(args.model, backend="torch", device="cpu", **shared),
    }
    speeds: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in ("decode", "pp512") for name in sides}
    about = describe_script(sides["opencl"].backend.probe())
    random, vocab = np.random.default_rng(0), sides["opencl"].config.vocab
    for turn in range(args.repeat + 1):  # the first round warms up
        long, short = (random.integers(0, vocab, size).tolist() for size in (LONG_PROMPT, PROMPT))
        for name, llm in sides.items():
            seconds = {"pp512": prefill(llm, long), "decode": decode(llm, short, args.tokens)}
            if turn:
                speeds["pp512", name].append(LONG_PROMPT / seconds["pp512"])
                speeds["decode", name].append(args.tokens / seconds["decode"])
    rows = []
    for kind in ("decode", "pp512"):
        row: dict[str, Any] = {"what": kind, "dtype": args.dtype}
        row |= {f"{name}_tok_s": round(median(speeds[kind, name]), 1) for name in sides}
        for peer in ("cpu", "torch"):
            pairs = zip(speeds[kind, "opencl"], speeds[kind, peer], strict=True)
            row[f"to_{peer}"] = round(median([ours / theirs for ours, theirs in pairs]), 3)
        rows.append(row)
    for llm in sides.values():
        llm.close()
    return about, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="f32", choices=("f32", "f16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded in each round")
    parser.add_argument("--skip-start", action="store_true", help="leave out the times of starts")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if not args.skip_start:
        with tempfile.TemporaryDirectory() as folder:
            seconds = [time_start(args.model, args.device, args.dtype, folder) for _ in range(3)]
        rows.append(
            {
                "what": "start",
                "dtype": args.dtype,
                "first_s": round(seconds[0], 2),
                "again_s": round(min(seconds[1:]), 2),
            }
        )
    about, measured = measure(args)
    rows += measured
    if args.json:
        return print_json({"about": about, "rows": rows})
    print("\n".join(map(str, rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
