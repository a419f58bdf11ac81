"""Memory of each rank's weights, and the bytes that the ranks of this host read from disk to load them.

Usage: python bench/rank_memory.py [MODEL] [--ranks 4] [--pp] [--json]

MODEL is what `spore bench` takes, also synthetic:SHAPE:FORMAT; synthetic:llama-1b:Q4_0 when none is named. Linux only.

packed     bytes of a rank's weights as the loader counts them, and their part of the whole model's
resident   memory of a rank's process beyond that of a rank of a tiny model, and its part of the same for one rank
read       bytes that all processes of the host have read from the disk, over the size of the file: `read_bytes` of
           /proc/PID/io, after the file was put out of the page cache

Example: python bench/rank_memory.py synthetic:llama-1b:Q4_0 --ranks 4 --json
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchmark_script import add_model, describe_script, find_model, make_parser, print_json, run_script

from sporelm import LLM
from sporelm.api.model_loader import ModelLoader
from sporelm.api.open_device import open_device
from sporelm.bench.scale.scale_tables import format_table
from sporelm.checkpoints import open_model
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.models.sharded_model import RankPlace

TINY = "synthetic:tiny:Q4_0"
OPTIONS: dict[str, Any] = {"max_context": 256, "max_batch": 1, "kv": "f16"}
KIBIBYTE = 1024


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model(parser)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--pp", action="store_true", help="stages of a pipeline instead of tensor-parallel ranks")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)  # in a process of its own
    return parser.parse_args()


# ---- in the process that loads


def load(args: argparse.Namespace) -> list[dict[str, int]]:
    """Load a model, and return the memory and the bytes read of each rank's process."""
    division = {"pp" if args.pp else "tp": args.ranks}
    with LLM(find_model(args.model), threads=args.ranks, **division, **OPTIONS):
        return [read_process(number) for number in (os.getpid(), *find_children())]


def find_children() -> list[int]:
    """Return the processes of the other ranks, in the order of their start."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            found += [int(number) for number in (task / "children").read_text(encoding="ascii").split()]
    return sorted(found)


def read_process(number: int) -> dict[str, int]:
    """Return resident bytes that belong to a process alone, and the bytes that it has read from the disk."""
    folder = Path("/proc") / str(number)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text(encoding="utf-8").splitlines())
    read = dict(line.split(":") for line in (folder / "io").read_text(encoding="ascii").splitlines())
    anonymous = int(status["RssAnon"].split()[0]) * KIBIBYTE
    return {"anonymous": anonymous, "read": int(read["read_bytes"])}


# ---- in the process that compares


def run_load(model: str, args: argparse.Namespace, ranks: int) -> list[dict[str, int]]:
    """Load a model in a process of its own that finds it on the disk alone."""
    path = find_model(model)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    words = [sys.executable, __file__, model, "--ranks", str(ranks), "--load", *(["--pp"] if args.pp else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, int]] = json.loads(done.stdout)
    return found


def count_packed_bytes(path: Path, parallel: ParallelConfig) -> tuple[int, list[int]]:
    """Return the bytes of the whole model's weights after packing, and those of each rank."""
    with (
        closing(open_device("cpu", "cpu", 1)) as backend,
        closing(open_model(path)) as source,
    ):
        stages = [SharedMemoryGroup.create(parallel.tp) for _ in range(parallel.pp)]
        world = SharedMemoryGroup.create(parallel.size)
        sizes = []
        for rank in range(parallel.size):
            group = stages[parallel.stage(rank)][parallel.tp_rank(rank)]
            place = RankPlace(parallel, rank, group, world[rank])
            sizes.append(ModelLoader(source, backend, "f16", dequantize=False, place=place).nbytes)
        return ModelLoader(source, backend, "f16", dequantize=False).nbytes, sizes


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all ranks."""
    path = find_model(args.model)
    find_model(TINY)
    parallel = ParallelConfig(pp=args.ranks) if args.pp else ParallelConfig(tp=args.ranks)
    whole, packed = count_packed_bytes(path, parallel)
    run_load(args.model, args, args.ranks)  # compiles kernels, and reads programs
    empty = run_load(TINY, argparse.Namespace(pp=False), args.ranks if not args.pp else 1)
    (empty_single,) = run_load(TINY, args, 1)
    (single,) = run_load(args.model, args, 1)
    loaded = run_load(args.model, args, args.ranks)
    whole_resident = single["anonymous"] - empty_single["anonymous"]
    rows = []
    for rank, (process, nbytes) in enumerate(zip(loaded, packed, strict=True)):
        resident = process["anonymous"] - empty[rank if rank < len(empty) else 0]["anonymous"]
        rows.append(
            {
                "rank": rank,
                "packed": nbytes,
                "packed_part": nbytes / whole,
                "resident": resident,
                "resident_part": resident / whole_resident,
                "read": process["read"],
            }
        )
    read, size = sum(row["read"] for row in rows), path.stat().st_size
    return {
        "file_bytes": size,
        "packed_bytes": whole,
        "resident_bytes": whole_resident,
        "read_part": read / size,
        "single_read_part": single["read"] / size,
        "rows": rows,
    }


def main() -> int:
    args = parse_arguments()
    if args.load:
        print(json.dumps(load(args)))
        return 0
    found = measure(args)
    with closing(open_device("cpu", "cpu", 1)) as backend:
        about = describe_script(backend.probe())
    if args.json:
        return print_json({**about, **found})
    print(f"{args.model}: {args.ranks} ranks; {about['machine']}")
    print(format_table([{key: value for key, value in found.items() if key != "rows"}]) + "\n")
    print(format_table(found["rows"]))
    return 0


if __name__ == "__main__":
    run_script(main)
