"""`spore gguf split`: split a model into several files."""

import argparse

from sporelm.cli import gguf_inputs, gguf_output
from sporelm.cli.parser import Parser


def make_parser() -> Parser:
    parser = Parser(
        "gguf split",
        "Split a GGUF model into files NAME-00001-of-0000N.gguf, with the same cuts, keys and bytes as llama.cpp's "
        "gguf-split. Tensors stay in order and are never cut; a tensor larger than --max-size gets its own file. A "
        "model that is split already is split again.",
        "FILE [options]",
        [
            "spore gguf split model.gguf --max-size 2G",
            "spore gguf split model.gguf --max-tensors 64 --no-tensor-first-split -o parts/model",
            "spore gguf split model.gguf --max-size 500M --dry-run --json",
            "spore gguf split model.gguf --max-tensors 64 --no-data -o headers/model",
        ],
    )
    parser.add_argument("file", metavar="FILE", help=gguf_inputs.GGUF_FILE_HELP)
    parser.add_argument("--max-tensors", type=int, metavar="N", help="maximum tensors per file; default: 128")
    parser.add_argument(
        "--max-size", metavar="SIZE",
        help="maximum bytes of tensors per file: 500M or 2G, powers of 1000 as in llama.cpp; 2Gi, powers of 1024",
    )  # fmt: skip
    parser.add_argument("--no-tensor-first-split", action="store_true", help="the first file has only metadata")
    gguf_output.add_no_data(parser)
    gguf_output.add_output(
        parser, "a folder, or the prefix of the names; default: the folder of FILE; if stored, the current folder"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.tools import split_model
    from sporelm.tools.lazy_model import open_lazy_model
    from sporelm.tools.merge_splits import find_split_model

    is_default = args.max_size is None and args.max_tensors is None
    cut = split_model.choose_cut(split_model.DEFAULT_MAX_TENSORS if is_default else args.max_tensors, args.max_size)
    assert cut is not None
    path = find_split_model([args.file])
    prefix = gguf_output.output_path(path, args.output, split_model.strip_split_suffix(path))
    model = open_lazy_model(path)
    prefix = prefix.with_name(split_model.strip_split_suffix(prefix))
    gguf_output.save(split_model.split_model(model, prefix, cut, no_tensor_first=args.no_tensor_first_split), args)
