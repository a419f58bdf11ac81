"""`spore gguf imatrix`: compute an importance matrix from a text, or merge several."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import gguf_inputs, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import escape_line

if TYPE_CHECKING:
    from sporelm.tools.imatrix_file import Imatrix

SAVE_INTERVAL = 10  # chunks
# Options that --merge does not use, with their defaults.
COMPUTE_OPTIONS = {
    "chunks": None, "context": 512, "process_output": False, "resume": False,
    "backend": None, "device": "cpu", "dtype": "auto", "strict": False, "threads": None,
}  # fmt: skip


def make_parser() -> Parser:
    parser = Parser(
        "gguf imatrix",
        "Compute an importance matrix: run a model over a text, and for every weight sum the squares of the "
        "activations of each column. 'spore gguf quantize --imatrix' allocates its bits by it. Files are compatible "
        f"with llama.cpp in both directions. The result is saved every {SAVE_INTERVAL} chunks and on Ctrl-C; --resume "
        "continues.",
        "MODEL TEXT -o OUT [options] | --merge FILE... -o OUT",
        [
            "spore gguf imatrix model-F16.gguf text.txt -o imatrix.gguf",
            "spore gguf imatrix model-F16.gguf text.txt -o imatrix.gguf --chunks 200 --resume",
            "spore gguf imatrix --merge english.gguf code.dat -o both.gguf",
        ],
    )
    parser.add_argument(
        "words", nargs="+", metavar="FILE", help="MODEL and TEXT, a UTF-8 file; with --merge importance matrices"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write")
    parser.add_argument("--merge", action="store_true", help="merge the importance matrices FILE...")
    parser.add_argument("--chunks", type=int, metavar="N", help="use only the first N chunks of the text")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="tokens per chunk; default: 512")
    parser.add_argument("--process-output", action="store_true", help="include the output matrix")
    parser.add_argument(
        "--resume", action="store_true", help="continue after the last chunk of OUT, which is of the same text"
    )
    parser.add_argument(
        "--format",
        choices=("gguf", "dat"),
        metavar="FORM",
        help="gguf, or dat for old programs; default: by the suffix of OUT",
    )
    options.add_device(parser)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    options.add_json(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.errors import UsageError
    from sporelm.tools.output_file import check_output_paths

    if args.output is None:
        raise UsageError("-o OUT is missing: the file to write")
    unused = [name for name, default in COMPUTE_OPTIONS.items() if args.merge and getattr(args, name) != default]
    if unused:
        raise UsageError(f"--merge runs no model: leave out --{unused[0].replace('_', '-')}")
    if not args.merge and len(args.words) != 2:
        raise UsageError(f"give a MODEL and a TEXT, not {len(args.words)} names; --merge takes importance matrices")
    options.check_threads(args.threads)
    output = Path(args.output).expanduser()
    resumes = args.resume and output.is_file()
    check_output_paths([output], args.force or resumes)
    if args.merge:
        return merge_files(args, output)
    return compute(args, output, resumes)


def merge_files(args: argparse.Namespace, output: Path) -> int:
    """Write the sum of the files. Returns exit code 0."""
    from sporelm.tools.imatrix_file import merge_imatrices, read_imatrix, write_imatrix

    imatrix = merge_imatrices([read_imatrix(Path(word).expanduser()) for word in args.words])
    write_imatrix(output, imatrix, form=args.format)
    print_result(args, output, imatrix, None)
    return 0


def compute(args: argparse.Namespace, output: Path, resumes: bool) -> int:
    """Run the model over the text. Returns exit code 0, or 130 after Ctrl-C; the result so far is saved."""
    from contextlib import closing

    from sporelm.cli.interrupt import interrupt_flag
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.errors import RequestError
    from sporelm.files import store
    from sporelm.tools.imatrix import ImatrixOptions, collect_imatrix
    from sporelm.tools.imatrix_file import read_imatrix, write_imatrix

    model, text_name = args.words
    text = options.read_text(text_name)
    previous = read_imatrix(output) if resumes else None
    if not text:
        raise RequestError(f"the text {text_name!r} is empty: give a text to run the model over")
    run_options = ImatrixOptions(
        args.context, args.chunks, args.process_output, args.backend, args.device, args.threads, args.dtype, args.strict
    )
    imatrix = previous
    num_chunks = 0
    is_saved = True
    with ProgressLine() as progress, interrupt_flag() as interrupted:
        path = store.resolve(model, progress)
        with closing(
            collect_imatrix(path, text, text_name, run_options, before=previous, progress=progress)
        ) as windows:
            try:
                for window in windows:
                    imatrix, num_chunks = window
                    is_saved = imatrix.chunks % SAVE_INTERVAL == 0
                    if is_saved:
                        write_imatrix(output, imatrix, form=args.format)
                    if interrupted:
                        break
            finally:  # saved after any error
                if imatrix is not None and not is_saved:
                    write_imatrix(output, imatrix, form=args.format)
    if imatrix is None:
        return 130
    print_result(args, output, imatrix, num_chunks)
    return 130 if interrupted and imatrix.chunks < num_chunks else 0


def print_result(args: argparse.Namespace, output: Path, imatrix: "Imatrix", num_chunks: int | None) -> None:
    """Print what was written, and on stderr what is missing."""
    if num_chunks is not None and imatrix.chunks < num_chunks:
        sys.stderr.write(f"spore: stopped after {imatrix.chunks} of {num_chunks} chunks; --resume continues\n")
    unseen = {name: entry.num_unseen for name, entry in imatrix.entries.items() if entry.num_unseen}
    for name, count in unseen.items():
        num_experts = len(imatrix.entries[name].counts)
        gguf_inputs.print_problem(f"{name}: no token was routed to {count} of {num_experts} experts")
    if args.json:
        gguf_inputs.print_json(
            {
                "path": str(output),
                "entries": len(imatrix.entries),
                "chunks": imatrix.chunks,
                "chunk_size": imatrix.chunk_size,
                "datasets": list(imatrix.datasets),
                "complete": num_chunks is None or imatrix.chunks >= num_chunks,
            }
        )
    else:
        summary = f"{len(imatrix.entries)} weights, {imatrix.chunks} chunks of {imatrix.chunk_size} tokens"
        print(f"{escape_line(str(output))}: {summary}")
