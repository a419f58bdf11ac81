"""`spore tokenize`: the tokens of a text, as the model's own tokenizer cuts it."""

import argparse
import json

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.run import read_text


def parser() -> Parser:
    made = Parser(
        "tokenize",
        "Show the tokens of a text: special tokens are added and recognised as for a prompt. Loads no weights.",
        "MODEL TEXT [options]",
        ['spore tokenize smollm2 "Hello there" --json'],
    )
    made.add_argument("model", metavar="MODEL", help=options.MODEL_HELP.replace("; default: smollm2", ""))
    made.add_argument("text", metavar="TEXT", help="the text; - reads stdin")
    made.add_argument("--json", action="store_true", help='print {"ids": [...], "pieces": [...]}')
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress import ProgressLine
    from sporelm.text import load_tokenizer
    from sporelm.weights import store

    text = read_text("-") if args.text == "-" else args.text
    with ProgressLine() as progress:
        tokenizer = load_tokenizer(store.resolve(args.model, progress))
    ids = tokenizer.encode(text)
    pieces = [tokenizer.id_to_piece(token) for token in ids]
    if args.json:
        print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    for token, piece in zip(ids, pieces, strict=True):
        print(f"{token:>8}  {piece!r}")
