"""The options of an answer: how its tokens are chosen, what it must look like, when it ends."""

import argparse
from typing import TYPE_CHECKING, Any

from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.api import SamplingParams
    from sporelm.text.grammar import Grammar

NO_BREAKER = "none"

# Of each group: option, what follows it, type, default, help. The option names the field of SamplingParams.
CHOOSING: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--temp", "T", float, 0.8, "temperature, applied last; 0 is greedy; default: 0.8"),
    ("--top-k", "K", int, 40, "keep the K likeliest, 0 keeps all; default: 40"),
    ("--top-p", "P", float, 0.95, "keep this share of probability; default: 0.95"),
    ("--min-p", "P", float, 0.0, "keep what has P times the best's probability; default: 0"),
    ("--typical-p", "P", float, 1.0, "keep what is nearest to the expected surprise, up to P; default: 1, off"),
    ("--xtc-probability", "P", float, 0.0, "how often to drop all likely tokens but the last; default: 0, off"),
    ("--xtc-threshold", "P", float, 0.1, "from which probability XTC calls a token likely; default: 0.1"),
    ("--mirostat", "V", int, 0, "1 or 2: steer the mean surprise instead of cutting; default: 0, off"),
    ("--mirostat-tau", "BITS", float, 5.0, "the mean surprise that mirostat aims at; default: 5"),
    ("--mirostat-eta", "E", float, 0.1, "how fast mirostat learns; default: 0.1"),
    ("--seed", "S", int, None, "same seed, same text; default: random, and printed"),
)
REPEATING: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--repetition-penalty", "R", float, 1.0, "divides the score of tokens seen; default: 1"),
    ("--presence-penalty", "R", float, 0.0, "taken from the score of tokens that the answer has; default: 0"),
    ("--frequency-penalty", "R", float, 0.0, "the same for each time that it has them; default: 0"),
    ("--dry-multiplier", "M", float, 0.0, "penalty for going on with a repetition (DRY); default: 0, off"),
    ("--dry-base", "B", float, 1.75, "by how much it grows with each token of the repetition; default: 1.75"),
    ("--dry-allowed-length", "N", int, 2, "tokens from which on a repetition counts; default: 2"),
    ("--dry-range", "N", int, 0, "last tokens in which repetitions are looked for; default: 0, all"),
)
ENDING: tuple[tuple[str, str, Any, Any, str], ...] = (
    ("--min-tokens", "N", int, 0, "tokens before which the model's ends are not taken; default: 0"),
)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How the next token is chosen, what the answer must look like, and when to stop."""
    ending = parser.add_argument_group("length and end")
    ending.add_argument("-n", "--max-tokens", type=int, default=256, metavar="N", help="tokens at most; default: 256")
    _add(ending, ENDING)
    ending.add_argument(
        "--stop", action="append", default=[], metavar="S", help="end before this text; may be repeated"
    )
    ending.add_argument(
        "--stop-token-id", action="append", type=int, default=[], metavar="ID",
        help="end after this token; may be repeated",
    )  # fmt: skip
    ending.add_argument("--ignore-eos", action="store_true", help="go on after the model's end-of-text token")
    ending.add_argument(
        "--roll",
        action="store_true",
        help="when the context is full, leave out what stands after its first quarter and go on, instead of ending",
    )
    choosing = parser.add_argument_group("choice of tokens")
    _add(choosing, CHOOSING)
    choosing.add_argument(
        "--logit-bias", action="append", type=bias, default=[], metavar="ID=B",
        help="added to the score of a token, from -100 to 100; may be repeated ('spore tokenize' shows ids)",
    )  # fmt: skip
    repeating = parser.add_argument_group("repetitions")
    _add(repeating, REPEATING)
    repeating.add_argument(
        "--dry-breaker", action="append", default=[], metavar="S",
        help="a text across which repetitions do not reach; may be repeated; 'none' for none; "
        "default: a new line, ':', '\"' and '*'",
    )  # fmt: skip
    form = parser.add_argument_group("form of the answer, one of these")
    form.add_argument("--json-schema", metavar="FILE|JSON", help="JSON of this schema: a file, or {...} itself")
    form.add_argument("--regex", metavar="R", help="what this regular expression matches")
    form.add_argument("--lark", metavar="FILE", help="what this Lark grammar produces")
    form.add_argument("--gbnf", metavar="FILE", help="what this grammar in GBNF (llama.cpp's format) produces")
    form.add_argument(
        "--choice", action="append", default=[], metavar="TEXT", help="this text or another one; to be repeated"
    )


def add_answers(parser: argparse.ArgumentParser) -> None:
    """How many answers, and what is told of them."""
    answers = parser.add_argument_group("answers")
    answers.add_argument("--num-answers", type=int, default=1, metavar="N", help="answers to the prompt; default: 1")
    answers.add_argument(
        "--best-of", type=int, metavar="N", help="make N answers, print those with the best mean log probability"
    )
    answers.add_argument(
        "--logprobs", type=int, metavar="N", help="with --json: each token's log probability, and of N alternatives"
    )


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    """The options as parameters. Raises UsageError for a value out of range, or one that contradicts another."""
    from sporelm.api import SamplingParams

    fields = {name_of(option): getattr(args, name_of(option)) for option, *_ in (*CHOOSING, *REPEATING, *ENDING)}
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
            logit_bias=biases(args),
            grammar=grammar(args),
            **fields,
            **answers(args),
        )
    except RequestError as reason:
        raise UsageError(str(reason)) from None


def biases(args: argparse.Namespace) -> dict[int, float]:
    """The bias of each token. Raises UsageError if one has two."""
    found = dict(args.logit_bias)
    if len(found) < len(args.logit_bias):
        raise UsageError("--logit-bias names a token twice: give each one bias")
    return found


def answers(args: argparse.Namespace) -> dict[str, Any]:
    """How many answers; nothing for a command that gives one. Raises UsageError."""
    if not hasattr(args, "num_answers"):
        return {}
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs are numbers of each token: add --json to have them")
    most = max(args.num_answers, args.best_of or 1)
    if most > 1 and args.temp == 0:
        raise UsageError(f"{most} answers at --temp 0 are all the same: give a temperature above 0")
    return {"n": args.num_answers, "best_of": args.best_of, "logprobs": args.logprobs}


def grammar(args: argparse.Namespace) -> "Grammar | None":
    """What the answer must look like, read and checked. Raises RequestError."""
    given = {name: getattr(args, name) for name in ("json_schema", "regex", "lark", "gbnf")}
    given["choice"] = args.choice or None
    if all(value is None for value in given.values()):
        return None
    from sporelm.text.grammar import Grammar
    from sporelm.text.grammar_text import LONGEST_GRAMMAR
    from sporelm.weights.text_file import read_text_or_stdin

    for name, what in (("json_schema", "the JSON schema"), ("lark", "the grammar"), ("gbnf", "the grammar")):
        value = given[name]
        if value is not None and not value.strip():
            raise UsageError(
                f"--{name.replace('_', '-')} is empty: give a file{' or a schema' * (name == 'json_schema')}"
            )
        if value is not None and not (name == "json_schema" and is_schema(value)):
            given[name] = read_text_or_stdin(value, what, 4 * LONGEST_GRAMMAR)
    found = Grammar(**given)
    found.source()
    return found


def is_schema(text: str) -> bool:
    """Whether this is a JSON schema itself, and not the name of a file."""
    return text.lstrip().startswith("{") or text.strip() == "true"


def bias(text: str) -> tuple[int, float]:
    """A token and what is added to its score."""
    token, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be ID=BIAS, as in 42=-3.5")
    try:
        return int(token), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be ID=BIAS, two numbers, as in 42=-3.5") from None


def name_of(option: str) -> str:
    """The name under which argparse keeps an option."""
    return option.removeprefix("--").replace("-", "_")


def _add(group: Any, rows: tuple[tuple[str, str, Any, Any, str], ...]) -> None:
    for option, metavar, kind, default, text in rows:
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=text)
