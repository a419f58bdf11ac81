"""Time messages between two processes or hosts over gloo, for the cost model of bench/scale.py.

Usage: python bench/link_messages.py FILE [--call all_gather] [--rank 0 --address HOST:PORT] [--repeat 50]
                                    [--interface NAME] [--json]

Without --rank both processes run on this machine. Else run it on one host with --rank 0, on the other with --rank 1 and
the same address, which is rank 0's. FILE gets [[bytes, seconds], ...] of the call on which the link is fitted, for
`bench/scale.py predict --messages FILE`: a gloo collective takes several times as long as a bare message, so fit on the
call that ranks use. Every other size is held out of the table's fit.

send        one message one way: half the time of a round trip
all_gather  each of two ranks gets the other's array
all_reduce  gloo's own sum

Example: python bench/link_messages.py link.json --repeat 30 --json
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from benchmark_script import make_parser, print_json, run_script
from torch import distributed

from sporelm.bench.scale.calibration import fit_link
from sporelm.bench.scale.scale_tables import format_percent, format_table

MESSAGE_BYTES = (256, 1024, 2304, 8192, 36_864, 65_536, 262_144, 589_824, 1 << 20)
CALLS = ("send", "all_gather", "all_reduce")
TIMEOUT = timedelta(seconds=60)


def time_calls(call: Callable[[], Any], repeat: int) -> float:
    """Return the median seconds of a call, after some that are not counted."""
    samples = []
    for turn in range(repeat + 5):
        start = perf_counter()
        call()
        if turn >= 5:
            samples.append(perf_counter() - start)
    return median(samples)


def time_call(name: str, nbytes: int, rank: int, repeat: int) -> float:
    """Return the seconds of a call of CALLS, of two ranks with `nbytes` each."""
    mine = torch.zeros(nbytes // 4)
    both = [torch.zeros(nbytes // 4) for _ in range(2)]

    def round_trip() -> None:
        for sender in (0, 1):
            if rank == sender:
                distributed.send(mine, 1 - rank)
            else:
                distributed.recv(mine, 1 - rank)

    if name == "send":
        return time_calls(round_trip, repeat) / 2
    if name == "all_gather":
        return time_calls(lambda: distributed.all_gather(both, mine), repeat)
    return time_calls(lambda: distributed.all_reduce(mine), repeat)


def run_rank(args: argparse.Namespace) -> int:
    """Time everything as one of two ranks; rank 0 writes the file and the table."""
    if args.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = args.interface
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{args.address}", rank=args.rank, world_size=2, timeout=TIMEOUT
    )
    times = {name: [(size, time_call(name, size, args.rank, args.repeat)) for size in MESSAGE_BYTES] for name in CALLS}
    distributed.destroy_process_group()
    if args.rank:
        return 0
    args.file.write_text(json.dumps(times[args.call]) + "\n", encoding="utf-8")
    link = fit_link("gloo", times[args.call][::2])
    rows: list[dict[str, Any]] = []
    for name in CALLS:
        for size, seconds in times[name]:
            fitted = link.send(size) if name == args.call else None
            error = None if fitted is None else fitted / seconds - 1
            rows.append({"call": name, "bytes": size, "us": seconds * 1e6, "error of the fit": error})
    values = {"latency_us": link.latency_seconds * 1e6, "gbit": link.bytes_per_second * 8 / 1e9}
    if args.json:
        return print_json({**values, "rows": rows})
    print(format_table([values]) + "\n")
    for row in rows:
        error = row["error of the fit"]
        row["error of the fit"] = "" if error is None else format_percent(error)
    print(format_table(rows))
    return 0


def run_both(words: list[str]) -> int:
    """Run two ranks on this machine."""
    command = [sys.executable, __file__, *words]
    other = subprocess.Popen([*command, "--rank", "1"])
    try:
        return subprocess.run([*command, "--rank", "0"], check=False).returncode or other.wait(60)
    finally:
        other.kill()
        other.wait()


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--call", choices=CALLS, default="all_gather")
    parser.add_argument("--rank", type=int, choices=(0, 1))
    parser.add_argument("--address", default="127.0.0.1:29517")
    parser.add_argument("--interface", help="network interface, such as eth0; default: gloo chooses")
    parser.add_argument("--repeat", type=int, default=50)
    args = parser.parse_args()
    return run_both(sys.argv[1:]) if args.rank is None else run_rank(args)


if __name__ == "__main__":
    run_script(main)
