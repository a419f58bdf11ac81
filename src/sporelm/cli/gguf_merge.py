"""`spore gguf merge`: join the files of a split model."""

import argparse

from sporelm.cli import gguf_output
from sporelm.cli.parser import Parser


def parser() -> Parser:
    made = Parser(
        "gguf merge",
        "Join the files of a split GGUF model into one. Tensors keep their bytes and their order; the keys of the "
        "split go away, so that split and merge give the file that was there before.",
        "FILE... [options]",
        [
            "spore gguf merge model-00001-of-00003.gguf",
            "spore gguf merge 'model-*-of-*.gguf' -o whole.gguf",
        ],
    )
    made.add_argument("files", nargs="+", metavar="FILE", help="the first file of a split model, or a pattern for all")
    gguf_output.add_output(
        made, "a file or a folder; default: NAME.gguf beside the first file; if stored, the current folder"
    )
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.tools.merge import find_split, merge
    from sporelm.tools.split import stem_of

    path = find_split(args.files)
    wanted = None if args.output is None else gguf_output.place(path, args.output, f"{stem_of(path)}.gguf")
    made = merge(path, wanted)
    if wanted is None:
        made = made._replace(path=gguf_output.beside(path) / made.path.name)
    gguf_output.save([made], args)
