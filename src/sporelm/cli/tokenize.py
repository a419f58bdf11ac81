"""`spore tokenize`: show the tokens of a text."""

import argparse
import json
from pathlib import Path

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import terminal_width

MIN_ALIGNED_COLUMNS = 40  # columns of a terminal from which ids are right-aligned
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


def make_parser() -> Parser:
    parser = Parser(
        "tokenize",
        "Show the tokens of a text. Special tokens are added and parsed as for a prompt. Loads no weights.",
        "[MODEL] TEXT [options]",
        ['spore tokenize "Hello there"', 'spore tokenize model.gguf "Hello there" --json'],
    )
    options.add_model_before(parser)
    parser.add_argument("text", metavar="TEXT", help="the text; - is stdin")
    options.add_json(parser, 'print {"ids": [...], "pieces": [...]}')
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store
    from sporelm.text import load_tokenizer

    if args.model is None:
        options.check_not_model(args.text, "TEXT")
    text = options.read_text("-", "the text", options.MAX_PROMPT_BYTES) if args.text == "-" else args.text
    folder = Path(args.model) if args.model is not None else None
    if folder is not None and any(
        (folder / name).is_file() for name in TOKENIZER_FILES
    ):  # a folder with only a tokenizer
        tokenizer = load_tokenizer(folder)
    else:
        with ProgressLine() as progress:
            tokenizer = load_tokenizer(store.resolve(args.model, progress))
    ids = tokenizer.encode(text)
    pieces = [tokenizer.id_to_piece(token) for token in ids]
    if args.json:
        print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    digits = 8 if (terminal_width() or MIN_ALIGNED_COLUMNS) >= MIN_ALIGNED_COLUMNS else len(str(max(ids, default=0)))
    for token, piece in zip(ids, pieces, strict=True):
        print(f"{token:>{digits}}  {piece!r}")
