"""`spore eval`: perplexity of a text, and the divergence of quantized weights from their dequantized selves."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sporelm.cli import lora, options
from sporelm.cli.parser import Parser
from sporelm.cli.run import read_text
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sporelm.api import LLM
    from sporelm.cli.progress import ProgressLine
    from sporelm.text import Tokenizer


def parser() -> Parser:
    made = Parser(
        "eval",
        "Measure quality on a text: windows of 512 tokens, the second half of each scored, comparable with "
        "llama-perplexity. ppl is the perplexity; kl compares the model with its own weights dequantized to f32: mean "
        "KL divergence in nat per token, agreement of the likeliest token, ratio of the perplexities.",
        "ppl|kl [MODEL] FILE [options]",
        ["spore eval ppl text.txt --json", "spore eval kl model.gguf text.txt --max-tokens 8192"],
    )
    made.add_argument("metric", metavar="ppl|kl", choices=("ppl", "kl"), help="what to measure")
    options.add_model_before(made)
    made.add_argument("file", metavar="FILE", help="a UTF-8 text; - is stdin")
    made.add_argument("--max-tokens", type=int, metavar="N", help="use the first N tokens of the text only")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_engine(made, guessing=False)
    lora.add_lora(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress import ProgressLine

    if args.max_tokens is not None and args.max_tokens < 1:
        raise UsageError(f"--max-tokens is {args.max_tokens}: it must be at least 1")
    if args.model is None:
        options.check_not_model(args.file, "FILE")
    text = read_text(args.file)
    if not text:
        raise RequestError(f"the text {args.file!r} is empty; there is nothing to measure on")
    with ProgressLine() as progress:
        report = (measure_perplexity if args.metric == "ppl" else measure_divergence)(args, text, progress)
    if args.json:
        print(json.dumps(report))
    else:
        print("\n".join(f"{name:<22}{value:.6g}" for name, value in report.items()))


class Adapted(NamedTuple):
    """A model with one of its adapters, or None, as what is scored."""

    llm: "LLM"
    adapter: str | None

    @property
    def tokenizer(self) -> "Tokenizer":
        return self.llm.tokenizer

    def logits(self, ids: list[int]) -> "NDArray[np.float32]":
        return self.llm.logits(ids, self.adapter)


def measure_perplexity(args: argparse.Namespace, text: str, progress: "ProgressLine") -> dict[str, Any]:
    from sporelm.evals import perplexity

    adapters = lora.adapters(args)
    llm = options.open_model(args, adapters=adapters)
    try:
        return asdict(perplexity(Adapted(llm, lora.first(adapters)), text, args.max_tokens, progress))
    finally:
        llm.close()


def measure_divergence(args: argparse.Namespace, text: str, progress: "ProgressLine") -> dict[str, Any]:
    """Both models have the adapter: what is measured is what rounding the weights costs beside it."""
    from sporelm.evals import kl

    adapters = lora.adapters(args)
    name = lora.first(adapters)
    llm = options.open_model(args, adapters=adapters)
    try:
        reference = options.open_model(args, adapters=adapters, dequantize=True)
        try:
            found = kl(Adapted(llm, name), Adapted(reference, name), text, args.max_tokens, progress)
        finally:
            reference.close()
    finally:
        llm.close()
    return asdict(found) | {"perplexity_ratio": found.perplexity_ratio}
