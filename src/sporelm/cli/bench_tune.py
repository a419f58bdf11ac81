"""`spore bench tune`: measures which register tiles of the CPU's kernels are fastest here, and keeps them."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import table, terminal_width
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.backends.cpu.tune import Row, Tuning


def parser() -> Parser:
    made = Parser(
        "bench tune",
        "Measure which register tiles (panels of rows by tokens) of the CPU's kernels are fastest on this machine, and "
        "keep them for later starts (SPORE_CPU_TILES; 'spore doctor' tells what is in use). Results do not depend on "
        "tiles, speed does. Takes some minutes on one core; best while nothing else runs.",
        "[options]",
        ["spore bench tune", "spore bench tune --target avx2 --format Q4_0,Q4_K"],
    )
    made.add_argument("--target", metavar="NAME", help="the CPU target; default: the one in use (SPORE_CPU_TARGET)")
    made.add_argument("--format", metavar="F,..", help="number formats to measure; default: all, and attention")
    made.add_argument("--quick", action="store_true", help="one format of each kind, and fewer samples")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from sporelm.backends.cpu import targets, tiles_file, tune
    from sporelm.cli.progress import ProgressLine

    path = tiles_file.place()
    if path is None:
        raise RequestError("SPORE_CPU_TILES is 'shipped', so measured tiles are not used: unset it, or name a file")
    with tiles_file.writing(path, keep=False):  # what cannot be written is refused now: measuring takes minutes
        pass
    chosen = targets.choose(args.target)
    target = replace(chosen, tiles=tiles_file.tiles_in_use(chosen).tiles)
    formats = args.format.split(",") if args.format is not None else None
    with ProgressLine() as progress:
        tuning = tune.measure(target, formats, progress, quick=args.quick)
    tiles_file.save(path, chosen, tuning.tiles)
    if args.json:
        print(json.dumps(as_json(tuning) | {"file": str(path)}, indent=2))
    else:
        print(as_table(tuning))
        print(f"kept for {target.name} in {path}")


def as_json(tuning: "Tuning") -> dict[str, Any]:
    """The target, its tiles as tiles.json has them, and the rows of the table."""
    rows = [
        {"name": row.name, "kernel": row.kernel, "before": list(row.before), "after": list(row.after)}
        | {"before_us": round(row.before_s * 1e6, 2), "after_us": round(row.after_s * 1e6, 2)}
        | {"gain": round(row.gain, 3)}
        for row in tuning.rows
    ]
    return {"target": tuning.target.name, "tiles": tuning.tiles.as_json(), "rows": rows}


def as_table(tuning: "Tuning") -> str:
    """Tiles as panels x tokens (rows, of attention), times in microseconds."""
    heads = ("format", "kernel", "before", "after", "before us", "after us", "gain")
    rows = [heads, *(cells(row) for row in tuning.rows)]
    lines = [f"{row[0]:<10}{row[1]:<7}" + "".join(f"{cell:>10}" for cell in row[2:]) for row in rows]
    width = terminal_width()
    return "\n".join(lines if width is None or max(map(len, lines)) <= width else table(rows, width))


def cells(row: "Row") -> tuple[str, ...]:
    """A row of the table."""
    tiles = ("x".join(map(str, tile)) for tile in (row.before, row.after))
    gain = f"{row.gain:.3f}" if row.after != row.before else "-"
    return (row.name, row.kernel, *tiles, f"{row.before_s * 1e6:.1f}", f"{row.after_s * 1e6:.1f}", gain)
