"""`spore rerank`: documents in the order of how well they answer a query."""

import argparse
import json

from sporelm.cli import options
from sporelm.cli.embed import add_lines, given_texts
from sporelm.cli.parser import Parser
from sporelm.errors import UsageError


def parser() -> Parser:
    made = Parser(
        "rerank",
        "Print documents by how well they answer a query, the best first: its score, between 0 and 1, its number, and "
        "the document. The model is a reranker: an encoder with a head that scores texts, or Qwen3-Reranker.",
        "MODEL QUERY [DOCUMENT ...] [-f FILE] [options]",
        ["spore rerank bge-reranker-v2-m3.gguf 'what is a panda?' 'A bear of China.' 'A city.'"],
    )
    made.add_argument("model", metavar="MODEL", help=options.MODEL_HELP.replace("; default: smollm2", ""))
    made.add_argument("query", metavar="QUERY", help="what is asked")
    made.add_argument("documents", nargs="*", metavar="DOCUMENT", help="a document")
    add_lines(made, "documents")
    made.add_argument("--top-n", type=int, metavar="N", help="print the best N only")
    made.add_argument("--no-normalize", action="store_true", help="print what the model's head says, any number")
    made.add_argument("--json", action="store_true", help='print {"results": [{"index", "score", "document"}, ...]}')
    options.add_engine(made, guessing=False)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    if args.top_n is not None and args.top_n < 1:
        raise UsageError(f"--top-n is {args.top_n}: it must be at least 1")
    documents = given_texts(args.documents, args.file, "documents")
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
        print(f"{each.score:<10.6g}{each.index:>5}  {documents[each.index]}")
