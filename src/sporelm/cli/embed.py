"""`spore embed`: texts as vectors."""

import argparse
import json

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.run import read_text
from sporelm.errors import RequestError, UsageError


def parser() -> Parser:
    made = Parser(
        "embed",
        "Print a vector for each text, a line each. The product of two is the cosine of the angle between them. "
        "Encoders such as BERT are made for this; of other models what they make of the text is taken. A single "
        "argument is TEXT, or MODEL with -f; of several arguments the first is MODEL.",
        "[MODEL] [TEXT ...] [-f FILE] [options]",
        [
            "spore embed bge-small.gguf 'A river in France' 'The Loire'",
            "spore embed bge-small.gguf -f lines.txt --json",
        ],
    )
    options.add_model_before(made)
    made.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
    add_lines(made, "texts")
    made.add_argument(
        "--pooling",
        choices=("mean", "cls", "last"),
        metavar="HOW",
        help="mean of all positions, cls for the first, or last; default: as the model's files say, else mean",
    )
    made.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="put this prompt of the model's folder before each text: query, say; default: as the folder says",
    )
    made.add_argument(
        "--truncate",
        action="store_true",
        help="cut longer texts at the max_seq_length of the model's folder, or where the context ends",
    )
    made.add_argument("--no-normalize", action="store_true", help="leave vectors as long as they are")
    made.add_argument("--json", action="store_true", help='print {"model": ..., "vectors": [[...], ...]}')
    options.add_engine(made, guessing=False)
    options.add_help(made)
    return made


def add_lines(made: Parser, what: str) -> None:
    """-f FILE."""
    made.add_argument("-f", "--file", metavar="FILE", help=f"more {what}, a line each; - is stdin")


def given_texts(texts: list[str], file: str | None, what: str) -> list[str]:
    """The texts of a command and of its file, without empty lines. Raises UsageError for none, RequestError for a file
    that has none."""
    lines = [] if file is None else [line for line in read_text(file).splitlines() if line.strip()]
    if file is not None and not lines:
        raise RequestError(f"{file!r} holds no text: give {what}, a line each")
    if not texts and not lines:
        raise UsageError(f"there are no {what}: give some, or a file of them with -f")
    return [*texts, *lines]


def run(args: argparse.Namespace) -> None:
    if args.model is not None and not args.texts and args.file is None:
        options.check_not_model(args.model, "TEXT")
        args.model, args.texts = None, [args.model]
    texts = given_texts(args.texts, args.file, "texts")
    llm = options.open_model(args)
    try:
        how = {"pooling": args.pooling, "prompt_name": args.prompt_name}
        vectors = llm.embed(texts, **how, truncate=args.truncate, normalize=not args.no_normalize)
        name = llm.config.name
    finally:
        llm.close()
    if args.json:
        print(json.dumps({"model": name, "vectors": vectors.tolist()}))
        return
    for vector in vectors:
        print(" ".join(f"{value:.6g}" for value in vector))
