"""The options of sampling: how tokens are chosen, what constrains the answer, when it ends."""

import argparse
from typing import TYPE_CHECKING, Any

from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.api import SamplingParams
    from sporelm.text.grammar.grammar import Grammar

NO_BREAKER = "none"

# For each group: option, metavar, type, default, help. The option names the field of SamplingParams.
SAMPLER_OPTIONS: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--temp", "T", float, 0.8, "temperature, applied last; 0 is greedy; default: 0.8"),
    ("--top-k", "K", int, 40, "keep the K most likely tokens; 0 keeps all; default: 40"),
    ("--top-p", "P", float, 0.95, "keep the most likely tokens up to this total probability; default: 0.95"),
    ("--min-p", "P", float, 0.0, "keep tokens with at least P times the highest probability; default: 0"),
    ("--typical-p", "P", float, 1.0, "locally typical sampling up to this total probability; default: 1, off"),
    ("--xtc-probability", "P", float, 0.0, "chance to drop all likely tokens but the least likely; default: 0, off"),
    ("--xtc-threshold", "P", float, 0.1, "probability from which XTC calls a token likely; default: 0.1"),
    ("--mirostat", "V", int, 0, "1 or 2: steer the mean surprise instead of filtering; default: 0, off"),
    ("--mirostat-tau", "BITS", float, 5.0, "target of the mean surprise for mirostat; default: 5"),
    ("--mirostat-eta", "E", float, 0.1, "learning rate of mirostat; default: 0.1"),
    ("--seed", "S", int, None, "same seed, same text; default: random, and printed"),
)
PENALTY_OPTIONS: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--repetition-penalty", "R", float, 1.0, "divides the logits of tokens seen before; default: 1"),
    ("--presence-penalty", "R", float, 0.0, "subtracted from the logits of generated tokens; default: 0"),
    ("--frequency-penalty", "R", float, 0.0, "subtracted once per occurrence of a generated token; default: 0"),
    ("--dry-multiplier", "M", float, 0.0, "DRY penalty for continuing a repetition; default: 0, off"),
    ("--dry-base", "B", float, 1.75, "growth of the DRY penalty with each repeated token; default: 1.75"),
    ("--dry-allowed-length", "N", int, 2, "length in tokens from which a repetition is penalized; default: 2"),
    ("--dry-range", "N", int, 0, "last tokens in which DRY looks for repetitions; default: 0, all"),
)
LENGTH_OPTIONS: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--min-tokens", "N", int, 0, "mask the model's end tokens for the first N tokens; default: 0"),
)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of sampling, of grammars and of the end of an answer."""
    length = parser.add_argument_group("length and end")
    length.add_argument("-n", "--max-tokens", type=int, default=256, metavar="N", help="maximum tokens; default: 256")
    _add_rows(length, LENGTH_OPTIONS)
    length.add_argument(
        "--stop", action="append", default=[], metavar="S", help="end before this text; may be repeated"
    )
    length.add_argument(
        "--stop-token-id", action="append", type=int, default=[], metavar="ID",
        help="end after this token; may be repeated",
    )  # fmt: skip
    length.add_argument("--ignore-eos", action="store_true", help="continue after the model's end-of-text token")
    length.add_argument(
        "--roll",
        action="store_true",
        help="context shift: when the context is full, drop the tokens after its first quarter and continue",
    )
    choice = parser.add_argument_group("choice of tokens")
    _add_rows(choice, SAMPLER_OPTIONS)
    choice.add_argument(
        "--logit-bias", action="append", type=parse_bias, default=[], metavar="ID=B",
        help="added to the logit of a token, from -100 to 100; may be repeated ('spore tokenize' shows ids)",
    )  # fmt: skip
    penalties = parser.add_argument_group("repetitions")
    _add_rows(penalties, PENALTY_OPTIONS)
    penalties.add_argument(
        "--dry-breaker", action="append", default=[], metavar="S",
        help="a text that interrupts repetitions; may be repeated; 'none' for none; default: a new line, ':', '\"' and "
        "'*'",
    )  # fmt: skip
    form = parser.add_argument_group("form of the answer, one of these")
    form.add_argument("--json-schema", metavar="FILE|JSON", help="JSON of this schema: a file, or {...} itself")
    form.add_argument("--regex", metavar="R", help="a text that matches this regular expression")
    form.add_argument("--lark", metavar="FILE", help="a text of this Lark grammar")
    form.add_argument("--gbnf", metavar="FILE", help="a text of this grammar in GBNF (llama.cpp's format)")
    form.add_argument(
        "--choice", action="append", default=[], metavar="TEXT", help="one of several texts; repeat it for each"
    )


def add_answers(parser: argparse.ArgumentParser) -> None:
    """Add the options for several answers and log probabilities."""
    answers = parser.add_argument_group("answers")
    answers.add_argument("--num-answers", type=int, default=1, metavar="N", help="answers to the prompt; default: 1")
    answers.add_argument(
        "--best-of", type=int, metavar="N", help="generate N answers, print those with the best mean log probability"
    )
    answers.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: log probabilities of each token and of N alternatives"
    )


def parse_sampling(args: argparse.Namespace) -> "SamplingParams":
    """Return the options as parameters. Raises UsageError for a value out of range, or one that contradicts another."""
    from sporelm.api import SamplingParams

    options = (*SAMPLER_OPTIONS, *PENALTY_OPTIONS, *LENGTH_OPTIONS)
    fields = {dest_of(option): getattr(args, dest_of(option)) for option, *_ in options}
    fields["temperature"] = fields.pop("temp")
    if args.dry_breaker:
        fields["dry_breakers"] = tuple(text for text in args.dry_breaker if text != NO_BREAKER)
    try:
        return SamplingParams(
            max_tokens=args.max_tokens,
            stop=tuple(args.stop),
            stop_token_ids=tuple(args.stop_token_id),
            ignore_eos=args.ignore_eos,
            roll=args.roll,
            logit_bias=parse_biases(args),
            grammar=parse_grammar(args),
            **fields,
            **parse_answers(args),
        )
    except RequestError as reason:
        raise UsageError(str(reason)) from None


def parse_biases(args: argparse.Namespace) -> dict[int, float]:
    """Return the bias of each token. Raises UsageError if one has two."""
    biases = dict(args.logit_bias)
    if len(biases) < len(args.logit_bias):
        raise UsageError("--logit-bias names a token twice: give each token one bias")
    return biases


def parse_answers(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields for several answers; none for a command without them. Raises UsageError."""
    if not hasattr(args, "num_answers"):
        return {}
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs is only printed with --json: add --json")
    count = max(args.num_answers, args.best_of or 1)
    if count > 1 and args.temp == 0:
        raise UsageError(f"{count} answers at --temp 0 are all the same: give a temperature above 0")
    return {"n": args.num_answers, "best_of": args.best_of, "logprobs": args.logprobs}


def parse_grammar(args: argparse.Namespace) -> "Grammar | None":
    """Return the grammar of the answer, if any, read from its file and checked. Raises RequestError."""
    values = {name: getattr(args, name) for name in ("json_schema", "regex", "lark", "gbnf")}
    values["choice"] = args.choice or None
    if all(value is None for value in values.values()):
        return None
    from sporelm.files.text_file import read_text_or_stdin
    from sporelm.text.grammar.grammar import Grammar
    from sporelm.text.grammar.grammar_checks import MAX_GRAMMAR_CHARACTERS

    for name, what in (("json_schema", "the JSON schema"), ("lark", "the grammar"), ("gbnf", "the grammar")):
        value = values[name]
        if value is not None and not value.strip():
            raise UsageError(
                f"--{name.replace('_', '-')} is empty: give a file{' or a schema' * (name == 'json_schema')}"
            )
        if value is not None and not (name == "json_schema" and is_schema(value)):
            values[name] = read_text_or_stdin(value, what, 4 * MAX_GRAMMAR_CHARACTERS)
    grammar = Grammar(**values)
    grammar.source()
    return grammar


def is_schema(text: str) -> bool:
    """Return whether this is a JSON schema itself, and not the name of a file."""
    return text.lstrip().startswith("{") or text.strip() == "true"


def parse_bias(text: str) -> tuple[int, float]:
    """Parse ID=BIAS."""
    token, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be ID=BIAS, as in 42=-3.5")
    try:
        return int(token), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be ID=BIAS, two numbers, as in 42=-3.5") from None


def dest_of(option: str) -> str:
    """Return the name of an option's value in argparse's namespace."""
    return option.removeprefix("--").replace("-", "_")


def _add_rows(group: Any, rows: tuple[tuple[str, str, Any, Any, str], ...]) -> None:
    for option, metavar, kind, default, help_text in rows:
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=help_text)
