"""Benchmark of all_reduce between processes of this host, inside steps as a model has them.

Usage: python bench/all_reduce.py [--ranks 2] [--threads 1] [--width 4096] [--tokens 1] [--calls 48] [--steps 200]
       [--repeat 5] [--pin] [--json]
Each rank is a process with its own CPU back-end. A step is one native call: --calls times a product that narrows the
rows, a product that widens them, and their sum over the ranks. A time is that of one rank in one all_reduce, the wait
for the other ranks included: they come at different times, as in a model. Rows of float32: 4096 are 16 KB.

The first steps of each repetition are left out. Of the repetitions, all are shown: the machine may be busy.
"""

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from benchmark_script import make_parser, print_json, run_script

from sporelm import ops
from sporelm.backends.cpu.cpu_backend import CpuBackend
from sporelm.cli.doctor import read_cpu_model
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.ops.spec import Spec
from sporelm.plan import Plan
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32

INNER = 64  # columns between the two products of a call
WARM_UP = 20  # steps


def make_plan(backend: CpuBackend, group: SharedMemoryGroup, options: argparse.Namespace) -> Plan:
    """Return the plan of a rank."""
    random = np.random.default_rng(group.rank)

    def weight(rows: int, columns: int) -> Any:
        values = random.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5 * group.size)
        return backend.pack(StoredTensor("weight", FORMATS["F32"], values.shape, values.view(np.uint8)))

    narrow, wide = weight(INNER, options.width), weight(options.width, INNER)

    def step(x: Any) -> dict[str, Any]:
        for _ in range(options.calls):
            x = ops.all_reduce(ops.linear(ops.linear(x, narrow), wide), group=group)
        return {"x": x}

    return Plan(ops.trace(step, {"x": Spec((options.tokens, options.width), F32)}), backend)


def run_rank(path: str, rank: int, options: argparse.Namespace) -> list[list[float]]:
    """Run the steps of a rank; return the seconds of each all_reduce, by repetition."""
    if options.pin:
        os.sched_setaffinity(0, range(rank * options.threads, (rank + 1) * options.threads))
    group, backend = SharedMemoryGroup.attach(path, rank), CpuBackend(threads=options.threads)
    plan, arrays = make_plan(backend, group, options), {"x": np.ones((options.tokens, options.width), np.float32)}
    take_times = backend.time_calls()
    found = []
    for _ in range(options.repeat):
        for _ in range(WARM_UP):
            plan.run(arrays, {})
        take_times()
        for _ in range(options.steps):
            plan.run(arrays, {})
        times = [time for time in take_times() if time.call.op is ops.all_reduce and time.thread == 0]
        found.append([time.seconds for time in times])
    plan.close()
    backend.close()
    return found


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each repetition."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = str(Path(folder) / "group")
        SharedMemoryGroup.create_file(path, options.ranks)
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(target=run_rank, args=(path, rank, options), daemon=True)
            for rank in range(1, options.ranks)
        ]
        for process in others:
            process.start()
        found = run_rank(path, 0, options)
        for process in others:
            process.join()
    nbytes = options.tokens * options.width * 4
    return [
        {
            "cpu": read_cpu_model(),
            "ranks": options.ranks,
            "threads": options.threads,
            "bytes": nbytes,
            "calls": len(times),
            "median_us": round(1e6 * median(times), 2),
            "p99_us": round(1e6 * float(np.percentile(times, 99)), 2),
            "mean_us": round(1e6 * fmean(times), 2),
            "min_us": round(1e6 * min(times), 2),
        }
        for times in found
    ]


def main() -> int:
    parser = make_parser(__doc__)
    for name, default in (("ranks", 2), ("threads", 1), ("width", 4096), ("tokens", 1), ("calls", 48), ("steps", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pin", action="store_true", help="give each rank cores of its own (Linux)")
    options = parser.parse_args()
    rows = measure(options)
    if options.json:
        return print_json(rows)
    print(f"{rows[0]['cpu']}: {options.ranks} ranks of {options.threads} threads, {rows[0]['bytes']} bytes")
    print("| median us | p99 us | mean us | min us | calls |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['median_us']} | {row['p99_us']} | {row['mean_us']} | {row['min_us']} | {row['calls']} |")
    return 0


if __name__ == "__main__":
    run_script(main)
