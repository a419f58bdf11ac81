"""`spore eval`: perplexity of a text, and the KL divergence of a quantized model from its dequantized weights."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sporelm.cli import lora_options, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import label_text, terminal_width
from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sporelm.api import LLM
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.text import Tokenizer


LABEL_WIDTH = 22  # columns before a value


def make_parser() -> Parser:
    parser = Parser(
        "eval",
        "Measure quality on a text in windows of 512 tokens; the second half of each is scored, comparable with "
        "llama-perplexity. ppl is the perplexity; kl compares the model with its own weights dequantized to f32: mean "
        "KL divergence in nats per token, agreement of the most likely token, ratio of the perplexities.",
        "ppl|kl [MODEL] FILE [options]",
        ["spore eval ppl text.txt --json", "spore eval kl model.gguf text.txt --max-tokens 8192"],
    )
    parser.add_argument("metric", metavar="ppl|kl", choices=("ppl", "kl"), help="what to measure")
    options.add_model_before(parser)
    parser.add_argument("file", metavar="FILE", help="a UTF-8 text; - is stdin")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="use only the first N tokens of the text")
    options.add_json(parser)
    options.add_engine(parser, generates=False)
    lora_options.add_lora(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.cli.progress_line import ProgressLine

    if args.max_tokens is not None and args.max_tokens < 1:
        raise UsageError(f"--max-tokens is {args.max_tokens}: it must be at least 1")
    if args.model is None:
        options.check_not_model(args.file, "FILE")
    text = options.read_text(args.file)
    if not text:
        raise RequestError(f"the text {args.file!r} is empty: give a text to measure")
    with ProgressLine() as progress:
        report = (measure_perplexity if args.metric == "ppl" else measure_divergence)(args, text, progress)
    if args.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print("\n".join(label_text(name, f"{value:.6g}", LABEL_WIDTH, terminal_width())))


class LoraEvalModel(NamedTuple):
    """A model with one of its LoRA adapters, or without one, to be scored."""

    llm: "LLM"
    adapter: str | None

    @property
    def tokenizer(self) -> "Tokenizer":
        return self.llm.tokenizer

    def logits(self, ids: list[int]) -> "NDArray[np.float32]":
        return self.llm.logits(ids, self.adapter)


def measure_perplexity(args: argparse.Namespace, text: str, progress: "ProgressLine") -> dict[str, Any]:
    from sporelm.evals import compute_perplexity

    adapters = lora_options.parse_lora(args)
    llm = options.open_model(args, adapters=adapters)
    try:
        return asdict(
            compute_perplexity(LoraEvalModel(llm, lora_options.first_name(adapters)), text, args.max_tokens, progress)
        )
    finally:
        llm.close()


def measure_divergence(args: argparse.Namespace, text: str, progress: "ProgressLine") -> dict[str, Any]:
    """Compare the model with its dequantized weights; both have the adapter, whose effect is not measured."""
    from sporelm.evals import compute_kl

    adapters = lora_options.parse_lora(args)
    name = lora_options.first_name(adapters)
    llm = options.open_model(args, adapters=adapters)
    try:
        reference = options.open_model(args, adapters=adapters, dequantize=True)
        try:
            result = compute_kl(
                LoraEvalModel(llm, name), LoraEvalModel(reference, name), text, args.max_tokens, progress
            )
        finally:
            reference.close()
    finally:
        llm.close()
    return asdict(result) | {"perplexity_ratio": result.perplexity_ratio}
