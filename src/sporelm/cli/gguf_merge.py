"""`spore gguf merge`: merge the files of a split model."""

import argparse

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def make_parser() -> Parser:
    parser = Parser(
        "gguf merge",
        "Merge the files of a split GGUF model into one. Tensors keep their bytes and their order; the keys of the "
        "split are removed, so that split and merge restore the original file.",
        "FILE... [options]",
        [
            "spore gguf merge model-00001-of-00003.gguf",
            "spore gguf merge 'model-*-of-*.gguf' -o whole.gguf",
            "spore gguf merge model-00001-of-00003.gguf --no-data -o header.gguf",
        ],
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="the first file of a split model, or a pattern for all"
    )
    gguf_output.add_no_data(parser)
    gguf_output.add_output(
        parser, "a file or a folder; default: NAME.gguf in the folder of the first file; if stored, the current folder"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.tools.merge_splits import find_split_model, merge_splits
    from sporelm.tools.split_model import strip_split_suffix

    path = find_split_model(args.files)
    requested = (
        None if args.output is None else gguf_output.output_path(path, args.output, f"{strip_split_suffix(path)}.gguf")
    )
    output = merge_splits(path, requested)
    if requested is None:
        output = output._replace(path=gguf_output.default_folder(path) / output.path.name)
    gguf_output.save([output], args)
