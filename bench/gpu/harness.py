"""Shared code of the GPU benchmarks: options, the device, timing, and rows of results.

Each script imports it first: on the CPU it turns on Triton's interpreter, which must happen before Triton is imported.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

MIN_SAMPLE_SECONDS = 0.02  # on a GPU: as many calls as that takes are timed together
WARM_UP_CALLS = 3  # compile the kernels, and fill the caches of the allocator
ROTATED_BYTES = 512 << 20  # operands that are used in turns are larger together than any L2 cache


def _wants_cpu(words: Sequence[str]) -> bool:
    """Return whether the command line asks for the CPU."""
    return "--device=cpu" in words or any(pair == ("--device", "cpu") for pair in pairwise(words))


if _wants_cpu(sys.argv):
    os.environ["TRITON_INTERPRET"] = "1"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu: under Triton's interpreter, to try the script")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try the script: figures mean nothing")
    parser.add_argument("--repeat", type=int, default=5, help="samples of each figure; the median counts")
    parser.add_argument("--limits", type=Path, help="limits of the card from this file, written by limits.py --write")
    parser.add_argument(
        "--save", type=Path, help="append each row to this file as a line of JSON as soon as it is there"
    )
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    return parser


def check_device(args: argparse.Namespace) -> None:
    """Exit with one line if the device is missing."""
    import torch

    if args.device == "cpu":
        torch.set_num_threads(min(2, torch.get_num_threads()))
        return
    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} sees no NVIDIA GPU. Install a torch built for CUDA, or try the script with"
            " --device cpu --tiny"
        )
    if (device := torch.device(args.device)).index is not None:
        torch.cuda.set_device(device)


def describe_run(args: argparse.Namespace) -> dict[str, str]:
    """Return the card, the versions and the commit behind a row."""
    import numpy as np
    import torch
    import triton

    found = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    found |= {"triton": triton.__version__, "cuda": str(torch.version.cuda), "commit": read_commit()}
    if args.device == "cpu":
        return {"card": "none (Triton's interpreter)", "driver": "", **found}
    properties = torch.cuda.get_device_properties(torch.device(args.device))
    return {"card": f"{properties.name}, {properties.total_memory / 1e9:.0f} GB", "driver": read_driver(), **found}


def read_driver() -> str:
    """Return the version of the driver; "" if nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip().partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return ""


def read_commit() -> str:
    """Return the commit of the source, with + if it has changes; "" outside a repository."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


class Timer:
    """Times work on a device: on a GPU captured in a CUDA graph, so that the time of launches does not count."""

    def __init__(self, device: str, repeat: int) -> None:
        self.device, self.repeat = device, repeat
        self.is_gpu = device != "cpu"
        self.was_captured = False  # whether the work timed last was

    def synchronize(self) -> None:
        """Wait until the device has nothing to do."""
        if self.is_gpu:
            import torch

            torch.cuda.synchronize()

    def time(self, works: Sequence[Callable[[], Any]], *, captures: bool = True) -> float:
        """Return the median seconds of one call of `works`, which are called in turns.

        They do the same on different operands, so that none of these lies in a cache. Work that cannot be captured is
        launched call by call.
        """
        if not self.is_gpu:
            return self._time_on_host(works)
        for _ in range(-(-WARM_UP_CALLS // len(works))):
            for work in works:
                work()
        self.synchronize()
        run = self._capture(works) if captures else None
        self.was_captured = run is not None

        def run_each() -> None:
            for work in works:
                work()

        return self._time_runs(run or run_each) / len(works)

    def _time_on_host(self, works: Sequence[Callable[[], Any]]) -> float:
        samples = []
        for number in range(self.repeat):
            began = perf_counter()
            works[number % len(works)]()
            samples.append(perf_counter() - began)
        return median(samples)

    def _capture(self, works: Sequence[Callable[[], Any]]) -> Callable[[], None] | None:
        import torch

        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for work in works:
                    work()
        except Exception as error:
            print(f"  launched call by call: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            self.synchronize()
            return None
        return graph.replay

    def _time_runs(self, run: Callable[[], Any]) -> float:
        """Return the median seconds of a run, by the device's clock."""
        import torch

        def time_runs(count: int) -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                run()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000 / count

        time_runs(1)
        count = max(1, round(MIN_SAMPLE_SECONDS / max(time_runs(2), 1e-7)))
        return median(time_runs(count) for _ in range(self.repeat))


class Report:
    """The rows of a script: printed as they come, kept in a file, and printed as JSON at the end."""

    def __init__(self, bench: str, args: argparse.Namespace) -> None:
        self.bench, self.args = bench, args
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def row(self, name: str, **about: Any) -> Iterator[dict[str, Any]]:
        """Add the row that the block fills. An error becomes a part of the row, and the script goes on.

        It does not go on if the device fails from then on, as after an illegal access.
        """
        row: dict[str, Any] = {"bench": self.bench, "name": name, **about}
        try:
            yield row
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if os.environ.get("BENCH_TRACEBACK"):
                import traceback

                traceback.print_exc()
        self.add(row)
        if "error" in row:
            check_alive(self.args.device)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, print it, and keep it."""
        row = {name: _shorten(value) for name, value in row.items()}
        self.rows.append(row)
        if self.args.save is not None:
            with self.args.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(format_row(row), file=sys.stderr if self.args.json else sys.stdout, flush=True)

    def finish(self) -> int:
        """Print the rows as JSON if that is asked for. Return the exit code: 1 if a row failed."""
        if self.args.json:
            print(json.dumps({"run": describe_run(self.args), "rows": self.rows}, indent=1))
        return int(any("error" in row for row in self.rows))


def check_alive(device: str) -> None:
    """Exit with one line if the device fails from now on, as after an illegal access."""
    if device == "cpu":
        return
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        raise SystemExit(f"the device failed: {' '.join(str(error).split())[:200]}") from None


def _shorten(value: Any) -> Any:
    """Return a float with five significant digits, and anything else as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def format_row(row: dict[str, Any]) -> str:
    """Return a row as a line."""
    hidden = ("bench", "name", "error")
    cells = [f"{name} {format_value(name, value)}" for name, value in row.items() if name not in hidden]
    return f"{row['bench']:11} {row['name']:34} " + ("error: " + row["error"] if "error" in row else "  ".join(cells))


def format_value(name: str, value: Any) -> str:
    """Return a value of a row as text: shares in per cent."""
    if isinstance(value, float):
        return f"{value:.1%}" if name.endswith("share") else f"{value:.4g}"
    return str(value)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that `--save` wrote; none if there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
