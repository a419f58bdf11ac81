"""`spore rerank`: sort documents by how well they answer a query."""

import argparse
import json

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import print_folded
from sporelm.errors import UsageError


def make_parser() -> Parser:
    parser = Parser(
        "rerank",
        "Print documents sorted by how well they answer a query, the best first: score, between 0 and 1, number and "
        "text. The model is a reranker: an encoder with a head that scores texts, or Qwen3-Reranker.",
        "MODEL QUERY [DOCUMENT ...] [-f FILE] [options]",
        ["spore rerank bge-reranker-v2-m3.gguf 'what is a panda?' 'A bear of China.' 'A city.'"],
    )
    parser.add_argument("model", metavar="MODEL", help=options.MODEL_HELP.replace("; default: smollm2", ""))
    parser.add_argument("query", metavar="QUERY", help="the query")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help="a document")
    options.add_lines(parser, "documents")
    parser.add_argument("--top-n", type=int, metavar="N", help="print only the best N")
    parser.add_argument("--no-normalize", action="store_true", help="print the raw output of the model's head")
    options.add_json(parser, 'print {"results": [{"index", "score", "document"}, ...]}')
    options.add_engine(parser, generates=False)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    if args.top_n is not None and args.top_n < 1:
        raise UsageError(f"--top-n is {args.top_n}: it must be at least 1")
    documents = options.read_lines(args.documents, args.file, "documents")
    llm = options.open_model(args)
    try:
        found = llm.rerank(args.query, documents, top_n=args.top_n, normalize=not args.no_normalize)
        name = llm.config.name
    finally:
        llm.close()
    if args.json:
        results = [{"index": each.index, "score": each.score, "document": documents[each.index]} for each in found]
        print(json.dumps({"model": name, "results": results}, ensure_ascii=False))
        return
    for each in found:
        print_folded(f"{each.score:<10.6g}{each.index:>5}  {documents[each.index]}")
