"""`spore gguf convert`: change a model by a list of steps."""

import argparse
from pathlib import Path

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser

STEPS_HELP = "steps in order, with '->' between them; may be repeated"


def parser() -> Parser:
    made = Parser(
        "gguf convert",
        "Change GGUF models by steps: sort (tensors in the order of computing); permute-qk, permute-qk-rev (rows of "
        "query and key from half-split to adjacent pairs, and back); merge-linear, split-linear [:attn,ffn,exps] "
        "(q, k, v and gate, up as one weight, and apart); cast:CLASS:TYPE,... (classes linear, embd, norm, else; every "
        "type that can be read to every type that can be made); to-llama (MiniCPM's scales into its weights); "
        "filter-meta:GLOB; filter-tensor:GLOB (* ? [...] a|b, !GLOB for all others). Everything streams: a few MB are "
        "in memory at a time.",
        "FILE... -x STEPS -o OUT [options]",
        [
            "spore gguf convert model.gguf -x 'cast:linear:Q8_0,embd:F16' -o small.gguf",
            "spore gguf convert minicpm.gguf -x 'to-llama -> sort' -o llama.gguf",
            "spore gguf convert model.gguf -x 'filter-tensor:!blk.1?.*' -x 'filter-meta:!general.url' -o part.gguf",
            "spore gguf convert 'models/*.gguf' -x sort -o sorted/",
        ],
    )
    made.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a .gguf file, the first file of a split model, a stored name or a pattern",
    )
    made.add_argument("-x", "--steps", action="append", default=[], metavar="STEPS", help=STEPS_HELP)
    gguf_output.add_output(made, "a file, or a folder for NAME.gguf in it; a split model becomes one file")
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.errors import UsageError
    from sporelm.tools.convert import convert
    from sporelm.tools.lazy import open_model
    from sporelm.tools.output import Output
    from sporelm.tools.split import stem_of
    from sporelm.tools.steps import parse_steps

    if not args.steps:
        raise UsageError("-x STEPS is missing: it says what to change, as in -x 'cast:linear:Q8_0'")
    if args.output is None:
        raise UsageError("-o OUT is missing: a file, or a folder")
    steps = parse_steps(args.steps)
    paths, are_found = gguf_inputs.found_models(args.files)

    def changed(path: Path) -> list[Output]:
        made = convert(open_model(path), steps, gguf_output.place(path, args.output, f"{stem_of(path)}.gguf"))
        for note in made.model.notes:
            gguf_inputs.complain(f"{path.name}: note: {note}")
        return [made]

    written = gguf_output.save_each(gguf_inputs.attempted(paths, changed), args)
    if written:
        gguf_output.tell([file for files in written.values() for file in files], args)
    return 0 if are_found and len(written) == len(paths) else 1
