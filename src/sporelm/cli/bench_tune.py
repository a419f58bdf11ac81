"""`spore bench tune`: find the fastest kernel settings of the CPU or of an OpenCL device, and save them."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import format_table, terminal_width
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.backends.cpu.tuning.tile_tuning import TileComparison, TuningResult


def make_parser() -> Parser:
    parser = Parser(
        "bench tune",
        "Find the fastest settings of the CPU kernels on this machine, for each number format: register tiles "
        "(panels of rows by tokens), 8- or 16-bit products, prefetch distance, and the number of tokens up to which "
        "the few-token kernel is used. They are saved for later starts (SPORE_CPU_TILES; 'spore doctor' shows those in "
        "use), and change the speed, not the results. Takes some minutes on one core; run it on an idle machine. With "
        "--backend opencl: "
        "the tile sizes, vector widths and work-group sizes of an OpenCL device (SPORE_OPENCL_TUNING); they also "
        "change the order of sums, so the last bits of results.",
        "[options]",
        [
            "spore bench tune",
            "spore bench tune --target avx2 --format Q4_0,Q4_K",
            "spore bench tune --backend opencl --device gpu",
        ],
    )
    parser.add_argument("--backend", choices=("cpu", "opencl"), default="cpu", help="cpu (default) or opencl")
    parser.add_argument(
        "--device",
        metavar="D",
        help="for opencl: the device; default: the first GPU, else the first accelerator, else the CPU",
    )
    parser.add_argument(
        "--target", metavar="NAME", help="for cpu: the CPU target; default: the one in use (SPORE_CPU_TARGET)"
    )
    parser.add_argument(
        "--format", metavar="F,..", help="for cpu: number formats to measure; default: all formats and attention"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="for cpu: take fewer samples and tune only tiles; without --format, tune one format per family",
    )
    options.add_json(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    if args.backend == "opencl":
        if args.target is not None or args.format is not None or args.quick:
            raise UsageError("--target, --format, --quick: only for the CPU. Leave them out with --backend opencl.")
        tune_opencl(args.device, is_json=args.json)
        return
    if args.device is not None:
        raise UsageError("--device: needs --backend opencl. Add it.")
    from dataclasses import replace

    from sporelm.backends.cpu import targets
    from sporelm.backends.cpu.tuning import measured_tiles, tile_tuning
    from sporelm.cli.progress_line import ProgressLine

    path = measured_tiles.tiles_path()
    if path is None:
        raise RequestError("SPORE_CPU_TILES is 'shipped', which disables measured settings: unset it, or name a file")
    if args.target is not None and args.target not in targets.available_targets():
        allowed = ", ".join(targets.available_targets())
        raise RequestError(f"--target: not supported on this CPU (got {args.target!r}; allowed {allowed}). Change it.")
    chosen = targets.select_target(args.target)
    formats = [name.strip() for name in args.format.split(",")] if args.format is not None else None
    with report_write_errors("SPORE_CPU_TILES", path):
        measured_tiles.TILES_FILE.check_writable(path)
        target = replace(chosen, tiles=measured_tiles.tiles_in_use(chosen).tiles)
        with report_interrupt(), ProgressLine() as progress:
            tuning = tile_tuning.tune_tiles(target, formats, progress, quick=args.quick)
        measured_tiles.save_tiles(path, chosen, tuning.tiles)
    if args.json:
        print(json.dumps(as_json(tuning) | {"file": str(path)}, indent=2))
    else:
        print(as_table(tuning))
        print(f"saved for {target.name} in {path}")


@contextmanager
def report_interrupt() -> Iterator[None]:
    """Say on Ctrl-C that the measurements are lost."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: nothing was saved", file=sys.stderr)
        raise


@contextmanager
def report_write_errors(setting: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a RequestError that names the setting."""
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"{setting}: cannot be written (got {path}: {error.strerror or error}). Set it to another file."
        ) from error


def tune_opencl(device: str | None, *, is_json: bool) -> None:
    """Measure an OpenCL device, save its numbers, and print them."""
    from sporelm import settings
    from sporelm.backends.opencl import OpenClBackend
    from sporelm.backends.opencl.kernel_tuning import tune_device
    from sporelm.backends.opencl.measured_tuning import TUNING_FILE, save_tuning
    from sporelm.backends.protocol import Missing
    from sporelm.cli.progress_line import ProgressLine

    backend = OpenClBackend(device=device)
    state = backend.probe()
    if isinstance(state, Missing):
        raise RequestError(f"back-end 'opencl' cannot run here: {state.reason}")
    path = settings.OPENCL_TUNING.path
    try:
        with report_write_errors("SPORE_OPENCL_TUNING", path):
            TUNING_FILE.check_writable(path)
            with report_interrupt(), ProgressLine() as progress:
                tuning, rows = tune_device(backend, progress)
            save_tuning(path, backend.device, tuning)
    finally:
        backend.close()
    if is_json:
        found = [row.as_json() for row in rows]
        print(json.dumps({"device": backend.device.label, "rows": found, "file": str(path)}, indent=2))
        return
    for row in rows:
        numbers = ", ".join(f"{name} {value}" for name, value in row.after.items())
        if row.after == row.before:
            gain = "unchanged"
        else:
            gain = f"{row.before_s / row.after_s:.2f} times as fast" if isfinite(row.before_s) else "did not run before"
        print(f"{row.name}: {numbers} ({row.after_s * 1e6:.0f} us, {gain})")
    print(f"saved for {backend.device.label} in {path}")


def as_json(tuning: "TuningResult") -> dict[str, Any]:
    """Return the target, its tiles in the form of tiles.json, and the rows of the table."""
    rows = [
        {"name": row.name, "kernel": row.choice, "before": list(row.before), "after": list(row.after)}
        | {"before_us": round(row.before_s * 1e6, 2), "after_us": round(row.after_s * 1e6, 2)}
        | {"gain": round(row.gain, 3)}
        for row in tuning.rows
    ]
    return {"target": tuning.target.name, "tiles": tuning.tiles.as_json(), "rows": rows}


def as_table(tuning: "TuningResult") -> str:
    """Return a table: tiles as panels x tokens, other choices as a number, times in microseconds."""
    headings = ("format", "choice", "before", "after", "before us", "after us", "gain")
    rows = [headings, *(format_cells(row) for row in tuning.rows)]
    lines = [f"{row[0]:<10}{row[1]:<11}" + "".join(f"{cell:>10}" for cell in row[2:]) for row in rows]
    width = terminal_width()
    return "\n".join(lines if width is None or max(map(len, lines)) <= width else format_table(rows, width))


def format_cells(row: "TileComparison") -> tuple[str, ...]:
    """Return a row of the table."""
    tiles = ("x".join(map(str, tile)) for tile in (row.before, row.after))
    gain = f"{row.gain:.3f}" if row.after != row.before else "-"
    return (row.name, row.choice, *tiles, f"{row.before_s * 1e6:.1f}", f"{row.after_s * 1e6:.1f}", gain)
