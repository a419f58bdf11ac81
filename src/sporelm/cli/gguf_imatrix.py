"""`spore gguf imatrix`: gather an importance matrix from a text, or merge several."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser

if TYPE_CHECKING:
    from sporelm.tools.imatrix_file import Imatrix

SAVED_EVERY = 10  # chunks
# Options that say how to gather, with the values that they have when nobody gives them: merging has no use for them.
GATHERING = {
    "chunks": None, "context": 512, "process_output": False, "resume": False,
    "backend": None, "device": "cpu", "threads": None,
}  # fmt: skip


def parser() -> Parser:
    made = Parser(
        "gguf imatrix",
        "Gather an importance matrix: run a model over a text, and for every weight sum the squares of what each "
        "column is multiplied with. 'spore gguf quantize --imatrix' spends its bits by it. Files are llama.cpp's, in "
        f"both directions. What was gathered is saved every {SAVED_EVERY} chunks, and on Ctrl-C; --resume goes on.",
        "MODEL TEXT -o OUT [options] | --merge FILE... -o OUT",
        [
            "spore gguf imatrix model-F16.gguf text.txt -o imatrix.gguf",
            "spore gguf imatrix model-F16.gguf text.txt -o imatrix.gguf --chunks 200 --resume",
            "spore gguf imatrix --merge english.gguf code.dat -o both.gguf",
        ],
    )
    made.add_argument(
        "words", nargs="+", metavar="FILE", help="MODEL and TEXT, a UTF-8 file; with --merge importance matrices"
    )
    made.add_argument("-o", "--output", metavar="OUT", help="the file to write")
    made.add_argument("--merge", action="store_true", help="add up the importance matrices FILE...")
    made.add_argument("--chunks", type=int, metavar="N", help="use the first N chunks of the text only")
    made.add_argument("--context", type=int, default=512, metavar="N", help="tokens of a chunk; default: 512")
    made.add_argument("--process-output", action="store_true", help="gather for the matrix that gives the scores, too")
    made.add_argument("--resume", action="store_true", help="go on where OUT, of the same text, ends")
    made.add_argument(
        "--format", choices=("gguf", "dat"), metavar="FORM", help="gguf, or dat for old programs; default: as OUT ends"
    )
    made.add_argument("--backend", metavar="NAME", help="cpu, torch or reference; default: cpu (SPORE_BACKEND)")
    made.add_argument("--device", metavar="D", default="cpu", help="device of the back-end; default: cpu")
    made.add_argument("--threads", type=int, metavar="N", help="default: the cores that affinity and cgroup leave")
    made.add_argument("--force", action="store_true", help="overwrite a file that is there already")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.errors import UsageError
    from sporelm.tools.output import check_places

    if args.output is None:
        raise UsageError("-o OUT is missing: the file to write")
    useless = [name for name, default in GATHERING.items() if args.merge and getattr(args, name) != default]
    if useless:
        raise UsageError(f"--merge runs no model: leave out --{useless[0].replace('_', '-')}")
    if not args.merge and len(args.words) != 2:
        raise UsageError(f"give a MODEL and a TEXT, not {len(args.words)} names; --merge takes importance matrices")
    options.check_threads(args.threads)
    place = Path(args.output).expanduser()
    is_there = args.resume and place.is_file()
    check_places([place], args.force or is_there)
    if args.merge:
        return merged(args, place)
    return gathered(args, place, is_there)


def merged(args: argparse.Namespace, place: Path) -> int:
    """Write the sum of the files. Exit code 0."""
    from sporelm.tools.imatrix_file import merge, read_imatrix, write_imatrix

    found = merge([read_imatrix(Path(word).expanduser()) for word in args.words])
    write_imatrix(place, found, form=args.format)
    tell(args, place, found, None)
    return 0


def gathered(args: argparse.Namespace, place: Path, is_there: bool) -> int:
    """Run the model over the text. Exit code 0, or 130 if Ctrl-C cut it short; what was gathered is saved."""
    from contextlib import closing

    from sporelm.cli.interrupt import interrupt_flag
    from sporelm.cli.progress import ProgressLine
    from sporelm.cli.run import read_text
    from sporelm.errors import RequestError
    from sporelm.tools.imatrix import Run, gather
    from sporelm.tools.imatrix_file import read_imatrix, write_imatrix
    from sporelm.weights import store

    model, name = args.words
    text, before = read_text(name), read_imatrix(place) if is_there else None
    if not text:
        raise RequestError(f"the text {name!r} is empty; there is nothing to gather from")
    chosen = Run(args.context, args.chunks, args.process_output, args.backend, args.device, args.threads)
    found, total, saved = before, 0, True
    with ProgressLine() as progress, interrupt_flag() as stopped:
        path = store.resolve(model, progress)
        with closing(gather(path, text, name, chosen, before=before, progress=progress)) as windows:
            try:
                for gathering in windows:
                    found, total = gathering
                    saved = found.chunks % SAVED_EVERY == 0
                    if saved:
                        write_imatrix(place, found, form=args.format)
                    if stopped:
                        break
            finally:  # whatever goes wrong in the middle
                if found is not None and not saved:
                    write_imatrix(place, found, form=args.format)
    if found is None:
        return 130
    tell(args, place, found, total)
    return 130 if stopped and found.chunks < total else 0


def tell(args: argparse.Namespace, place: Path, found: "Imatrix", total: int | None) -> None:
    """Print what was written; on stderr what it lacks."""
    from sporelm.cli.gguf_text import plain

    if total is not None and found.chunks < total:
        sys.stderr.write(f"spore: stopped after {found.chunks} of {total} chunks; --resume goes on\n")
    unseen = {name: entry.unseen for name, entry in found.entries.items() if entry.unseen}
    for name, count in unseen.items():
        gguf_inputs.complain(f"{name}: no text went to {count} of {len(found.entries[name].counts)} experts")
    if args.json:
        gguf_inputs.print_json(
            {
                "path": str(place),
                "entries": len(found.entries),
                "chunks": found.chunks,
                "chunk_size": found.chunk_size,
                "datasets": list(found.datasets),
                "complete": total is None or found.chunks >= total,
            }
        )
    else:
        print(f"{plain(str(place))}: {len(found.entries)} weights, {found.chunks} chunks of {found.chunk_size} tokens")
