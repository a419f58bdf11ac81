"""`spore pull`: fetch a model into the store."""

import argparse

from sporelm.cli import options
from sporelm.cli.parser import Parser


def parser() -> Parser:
    made = Parser(
        "pull",
        "Fetch a model into the store and print its path. Known by name: smollm2 (SmolLM2-135M-Instruct, Q4_1, 98 MB).",
        "NAME [options]",
        ["spore pull smollm2", "spore pull hf:owner/name:file.gguf"],
    )
    made.add_argument("name", metavar="NAME", help="a known name, or hf:owner/name[:file] (needs sporelm[hub])")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress import ProgressLine
    from sporelm.weights import store

    with ProgressLine() as progress:
        path = store.pull(args.name, progress)
    print(path)
