"""`spore embed`: compute embeddings of texts."""

import argparse
import json

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import print_folded


def make_parser() -> Parser:
    parser = Parser(
        "embed",
        "Print an embedding for each text, one line each. The dot product of two is their cosine similarity. Encoders "
        "such as BERT are made for this; with other models the hidden states are pooled. A single argument is TEXT, or "
        "MODEL with -f; of several arguments the first is MODEL.",
        "[MODEL] [TEXT ...] [-f FILE] [options]",
        [
            "spore embed bge-small.gguf 'A river in France' 'The Loire'",
            "spore embed bge-small.gguf -f lines.txt --json",
        ],
    )
    options.add_model_before(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
    options.add_lines(parser, "texts")
    parser.add_argument(
        "--pooling",
        choices=("mean", "cls", "last"),
        metavar="HOW",
        help="mean of all positions, cls (the first), or last; default: as the model's files say, else mean",
    )
    parser.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="put this prompt of the model's folder before each text, such as query; default: as the folder says",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="truncate longer texts to the max_seq_length of the model's folder and to the context",
    )
    parser.add_argument("--no-normalize", action="store_true", help="do not scale vectors to length 1")
    options.add_json(parser, 'print {"model": ..., "vectors": [[...], ...]}')
    options.add_engine(parser, generates=False)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    if args.model is not None and not args.texts and args.file is None:
        options.check_not_model(args.model, "TEXT")
        args.model, args.texts = None, [args.model]
    texts = options.read_lines(args.texts, args.file, "texts")
    llm = options.open_model(args)
    try:
        vectors = llm.embed(
            texts,
            pooling=args.pooling,
            prompt_name=args.prompt_name,
            truncate=args.truncate,
            normalize=not args.no_normalize,
        )
        name = llm.config.name
    finally:
        llm.close()
    if args.json:
        print(json.dumps({"model": name, "vectors": vectors.tolist()}))
        return
    for vector in vectors:
        print_folded(" ".join(f"{value:.6g}" for value in vector))
