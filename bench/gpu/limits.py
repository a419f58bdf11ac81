"""The physical limits of a card (its roofline), with which the other benchmarks compare their figures.

Usage: PYTHONPATH=src python3 bench/gpu/limits.py [--repeat 5] [--write FILE] [--json]

read      bytes a second read by a kernel that adds up an array larger than the caches
copy      bytes a second that a copy reads and writes, both counted
matmul    operations a second on square matrices of normal random numbers by the vendor's library: bf16, and fp8
          where the card has it
launch    seconds of the host to launch an empty kernel; of the device between the empty kernels of a CUDA graph
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import harness
import torch
import triton
import triton.language as tl
from torch import Tensor

LAUNCHES = 200
READ_BLOCKS = 8  # blocks of BLOCK numbers that a program reads
BLOCK = 4096


@dataclass(frozen=True)
class Limits:
    """Rates of a card. 0: not measured, or not there."""

    read_bytes_s: float
    copy_bytes_s: float
    bf16_flops: float
    fp8_flops: float
    launch_s: float
    graph_kernel_s: float

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


@triton.jit
def sum_kernel(values, sums, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sum of BLOCKS * BLOCK numbers."""
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(BLOCKS):
        total += tl.load(values + (program * BLOCKS + number) * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums + program, tl.sum(total, 0))


@triton.jit
def empty_kernel(values):
    """Write one number."""
    tl.store(values, 1.0)


def measure_read(timer: harness.Timer, nbytes: int) -> float:
    """Return bytes read a second, by the best of several numbers of warps."""
    programs = max(1, nbytes // (4 * BLOCK * READ_BLOCKS))
    values = torch.ones(programs * BLOCK * READ_BLOCKS, device=timer.device)
    sums = torch.empty(programs, device=timer.device)

    def read(num_warps: int) -> None:
        sum_kernel[(programs,)](values, sums, READ_BLOCKS, BLOCK, num_warps=num_warps)

    warps = (4, 8, 16) if timer.is_gpu else (4,)
    return max(values.nbytes / timer.time([lambda count=count: read(count)]) for count in warps)


def measure_copy(timer: harness.Timer, nbytes: int) -> float:
    """Return bytes read and written a second."""
    source = torch.ones(nbytes // 4, device=timer.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timer.time([lambda: target.copy_(source)])


def measure_bf16(timer: harness.Timer, side: int) -> float:
    """Return operations a second of a product of bf16 matrices; a multiplication and an addition count as two."""
    left, right = (torch.randn(side, side, device=timer.device).bfloat16() for _ in range(2))
    return 2 * side**3 / timer.time([lambda: left @ right])


def measure_fp8(timer: harness.Timer, side: int) -> float:
    """Return operations a second of a product of fp8 matrices; 0 if the card has no such product."""
    if timer.is_gpu and torch.cuda.get_device_capability() < (8, 9):
        return 0.0
    left, right = (torch.randn(side, side, device=timer.device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=timer.device)

    def multiply() -> Tensor:
        product: Tensor = torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        return product

    return 2 * side**3 / timer.time([multiply])


def measure_launches(timer: harness.Timer) -> tuple[float, float]:
    """Return the host's seconds of a launch, and the device's seconds of an empty kernel in a CUDA graph."""
    value = torch.empty(1, device=timer.device)

    def launch() -> None:
        empty_kernel[(1,)](value)

    launch()
    timer.synchronize()
    count = LAUNCHES if timer.is_gpu else 2
    began = perf_counter()
    for _ in range(count):
        launch()
    seconds = (perf_counter() - began) / count
    return seconds, timer.time([launch] * count) if timer.is_gpu else 0.0


def measure_limits(timer: harness.Timer, report: harness.Report, *, tiny: bool) -> Limits:
    """Measure all limits, with a row for each."""
    nbytes, sides = (1 << 20, (64,)) if tiny else (4 << 30, (4096, 8192))
    rates = dict.fromkeys(("read", "copy", "bf16", "fp8"), 0.0)
    for name, measure in (("read", measure_read), ("copy", measure_copy)):
        with report.row(name, unit="GB/s") as row:
            rates[name] = measure(timer, nbytes)
            row["value"] = rates[name] / 1e9
    for name, measure in (("bf16", measure_bf16), ("fp8", measure_fp8)):
        for side in sides:
            with report.row(f"matmul {name} {side}", unit="TFLOP/s") as row:
                found = measure(timer, side)
                rates[name] = max(rates[name], found)
                row["value"] = found / 1e12
    launch_s = graph_s = 0.0
    with report.row("launch", unit="us") as row:
        launch_s, graph_s = measure_launches(timer)
        row |= {"value": launch_s * 1e6, "in a graph": graph_s * 1e6}
    return Limits(rates["read"], rates["copy"], rates["bf16"], rates["fp8"], launch_s, graph_s)


def load_limits(args: argparse.Namespace, report: harness.Report) -> Limits:
    """Return the limits of the file that `--limits` names, or measure them now."""
    if args.limits is not None:
        return Limits(**json.loads(args.limits.read_text(encoding="utf-8")))
    return measure_limits(harness.Timer(args.device, args.repeat), report, tiny=args.tiny)


def share_of(value: float, limit: float) -> float | None:
    """Return a figure as a share of its limit; None if the limit is not known."""
    return value / limit if limit else None


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--write", type=Path, help="write the limits to this file, for --limits of the other scripts")
    args = parser.parse_args()
    harness.check_device(args)
    report = harness.Report("limits", args)
    limits = load_limits(args, report)
    if args.write is not None:
        limits.save(args.write)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
