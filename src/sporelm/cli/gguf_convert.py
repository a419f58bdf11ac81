"""`spore gguf convert`: transform a model by a list of steps."""

import argparse
from pathlib import Path

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser

STEPS_HELP = "steps in order, separated by '->'; may be repeated"


def make_parser() -> Parser:
    parser = Parser(
        "gguf convert",
        "Transform GGUF models by steps: sort (tensors in computation order); permute-qk and permute-qk-rev (rows "
        "of query and key from half-split to adjacent pairs, and back); merge-linear, split-linear [:attn,ffn,exps] "
        "(fuse q, k, v and gate, up into one weight, and split them); cast:CLASS:TYPE,... (classes linear, embd, norm, "
        "else; from any readable type to any writable type); to-llama (MiniCPM's scales into its weights); "
        "filter-meta:GLOB; filter-tensor:GLOB (* ? [...] a|b, !GLOB for all others). Everything is streamed: memory "
        "use is a few MB.",
        "FILE... -x STEPS -o OUT [options]",
        [
            "spore gguf convert model.gguf -x 'cast:linear:Q8_0,embd:F16' -o small.gguf",
            "spore gguf convert minicpm.gguf -x 'to-llama -> sort' -o llama.gguf",
            "spore gguf convert model.gguf -x 'filter-tensor:!blk.1?.*' -x 'filter-meta:!general.url' -o part.gguf",
            "spore gguf convert 'models/*.gguf' -x sort -o sorted/",
            "spore gguf convert model.gguf -x merge-linear --no-data -o header.gguf",
        ],
    )
    gguf_inputs.add_files(parser, gguf_inputs.GGUF_FILES_HELP)
    parser.add_argument("-x", "--steps", action="append", default=[], metavar="STEPS", help=STEPS_HELP)
    gguf_output.add_no_data(parser)
    gguf_output.add_output(parser, "a file, or a folder for NAME.gguf in it; a split model becomes one file")
    return parser


def run(args: argparse.Namespace) -> int:
    from sporelm.errors import UsageError
    from sporelm.tools.convert import convert_model
    from sporelm.tools.lazy_model import open_lazy_model
    from sporelm.tools.output_file import OutputFile
    from sporelm.tools.split_model import strip_split_suffix
    from sporelm.tools.steps import parse_steps

    if not args.steps:
        raise UsageError("-x STEPS is missing: it says what to change, as in -x 'cast:linear:Q8_0'")
    if args.output is None:
        raise UsageError("-o OUT is missing: a file, or a folder")
    steps = parse_steps(args.steps)
    paths, all_found = gguf_inputs.find_all(args.files)

    def convert_one(path: Path) -> list[OutputFile]:
        output = convert_model(
            open_lazy_model(path), steps, gguf_output.output_path(path, args.output, f"{strip_split_suffix(path)}.gguf")
        )
        for note in output.model.notes:
            gguf_inputs.print_problem(f"{path.name}: note: {note}")
        return [output]

    written = gguf_output.save_each(gguf_inputs.try_each(paths, convert_one), args)
    if written:
        gguf_output.print_written([file for files in written.values() for file in files], args)
    return 0 if all_found and len(written) == len(paths) else 1
