"""`spore gguf split`: cut a model into several files."""

import argparse
from functools import partial

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def parser() -> Parser:
    made = Parser(
        "gguf split",
        "Cut a GGUF model into files NAME-00001-of-0000N.gguf, with the cuts, keys and bytes that llama.cpp's "
        "gguf-split makes. Tensors stay in order and are never cut; a tensor larger than --max-size has a file for "
        "itself. A split model is cut anew.",
        "FILE [options]",
        [
            "spore gguf split model.gguf --max-size 2G",
            "spore gguf split model.gguf --max-tensors 64 --no-tensor-first-split -o parts/model",
            "spore gguf split model.gguf --max-size 500M --dry-run --json",
        ],
    )
    made.add_argument("file", metavar="FILE", help="a .gguf file, the first file of a split model, or a stored name")
    made.add_argument("--max-tensors", type=int, metavar="N", help="tensors in a file at most; default: 128")
    made.add_argument(
        "--max-size", metavar="SIZE",
        help="bytes of tensors in a file at most: 500M or 2G, powers of 1000 as in llama.cpp; 2Gi, powers of 1024",
    )  # fmt: skip
    made.add_argument("--no-tensor-first-split", action="store_true", help="the first file has the metadata alone")
    gguf_output.add_output(
        made, "a folder, or the beginning of the names; default: beside FILE; if stored, the current folder"
    )
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.errors import UsageError
    from sporelm.tools import split
    from sporelm.tools.lazy import open_model
    from sporelm.tools.merge import find_split

    if args.max_size is not None and args.max_tensors is not None:
        raise UsageError("--max-size and --max-tensors exclude each other; give one")
    if args.max_size is not None:
        cut = partial(split.cut_by_size, most=split.parse_size(args.max_size))
    else:
        most = split.DEFAULT_TENSORS if args.max_tensors is None else args.max_tensors
        cut = partial(split.cut_by_tensors, most=most)
    cut([])  # refuses a wrong number before anything is looked for
    path = find_split([args.file])
    prefix = gguf_output.place(path, args.output, split.stem_of(path))
    model = open_model(path)
    prefix = prefix.with_name(split.stem_of(prefix))
    gguf_output.save(split.split(model, prefix, cut, no_tensor_first=args.no_tensor_first_split), args)
