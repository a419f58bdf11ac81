"""`spore pull`: download a model into the store."""

import argparse

from sporelm.cli import options
from sporelm.cli.parser import Parser


def make_parser() -> Parser:
    parser = Parser(
        "pull",
        "Download a model into the store and print its path. Known by name: smollm2 (SmolLM2-135M-Instruct, Q4_1; a "
        "download of 93 MB, 98 MB unpacked). Models of the Hugging Face hub are hf:owner/name (its safetensors, or its "
        "only GGUF model), with a file, a pattern or the tag of a number format after a colon; all files of a split "
        "model are downloaded. An interrupted download is resumed; sizes and hashes are checked; a model appears in "
        "the store complete or not at all. For private and gated models set HF_TOKEN.",
        "NAME [options]",
        [
            "spore pull smollm2",
            "spore pull hf:owner/name",
            "spore pull hf:owner/name:Q4_K_M",
            "spore pull 'hf:owner/name:*Q8_0*'",
            "spore pull hf:owner/name:folder/file.gguf --revision v1.0",
        ],
    )
    parser.add_argument(
        "name", metavar="NAME", help="a known name, or hf:owner/name[:file, pattern or tag] (needs sporelm[hub])"
    )
    parser.add_argument(
        "--revision", metavar="R", help="branch, tag or commit of the repository; the same as hf:owner/name@R"
    )
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store

    with ProgressLine() as progress:
        path = store.pull(args.name, progress, args.revision)
    print(path)
