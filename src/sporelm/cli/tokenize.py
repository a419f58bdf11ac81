"""`spore tokenize`: the tokens of a text, as the model's own tokenizer cuts it."""

import argparse
import json
from pathlib import Path

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.run import LONGEST_PROMPT, read_text
from sporelm.cli.terminal_layout import terminal_width

WIDE = 40  # columns of a terminal on which ids are indented
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


def parser() -> Parser:
    made = Parser(
        "tokenize",
        "Show the tokens of a text: special tokens are added and recognised as for a prompt. Loads no weights.",
        "[MODEL] TEXT [options]",
        ['spore tokenize "Hello there"', 'spore tokenize model.gguf "Hello there" --json'],
    )
    options.add_model_before(made)
    made.add_argument("text", metavar="TEXT", help="the text; - reads stdin")
    made.add_argument("--json", action="store_true", help='print {"ids": [...], "pieces": [...]}')
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress import ProgressLine
    from sporelm.text import load_tokenizer
    from sporelm.weights import store

    if args.model is None:
        options.check_not_model(args.text, "TEXT")
    text = read_text("-", "the text", LONGEST_PROMPT) if args.text == "-" else args.text
    folder = Path(args.model) if args.model is not None else None
    if folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES):  # it may hold no model
        tokenizer = load_tokenizer(folder)
    else:
        with ProgressLine() as progress:
            tokenizer = load_tokenizer(store.resolve(args.model, progress))
    ids = tokenizer.encode(text)
    pieces = [tokenizer.id_to_piece(token) for token in ids]
    if args.json:
        print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    digits = 8 if (terminal_width() or WIDE) >= WIDE else len(str(max(ids, default=0)))
    for token, piece in zip(ids, pieces, strict=True):
        print(f"{token:>{digits}}  {piece!r}")
