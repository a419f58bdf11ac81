"""The sampling parameters of a request to another server: only parameters that the user gave."""

import argparse
import math
from dataclasses import dataclass, fields
from typing import Any

from sporelm.cli import sampling_options
from sporelm.errors import RequestError, UsageError

# Options that may be given with --url and are not sampling parameters.
OTHER_OPTIONS = {"url", "api_key", "model", "system", "debug", "images"}
GRAMMAR_OPTIONS = ("json_schema", "regex", "lark", "gbnf", "choice")


@dataclass(frozen=True)
class RemoteParams:
    """Fields of a request: OpenAI's, and extensions of Sporelm's server.

    A field that is None is not sent, so the server's default applies. Raises RequestError for a number that is not
    finite; the server checks the rest.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    # Extensions of OpenAI's API.
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    repetition_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_range: int | None = None
    dry_breakers: list[str] | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    roll: bool | None = None

    def __post_init__(self) -> None:
        for name, value in self.as_fields().items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(f"{name} is {value}: it must be a finite number")

    def as_fields(self) -> dict[str, Any]:
        """Return the fields that are sent."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> "RemoteParams":
        """Return the parameters named by `args.given_names`. Raises UsageError for options of an engine."""
        values: dict[str, Any] = {}
        for name in sorted(args.given_names - OTHER_OPTIONS - set(GRAMMAR_OPTIONS)):
            field = FIELD_OF_OPTION.get(name)
            if field is None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for a local model, and with --url the model runs on the server: "
                    "leave one of them out"
                )
            values[field] = getattr(args, name)
        if "dry_breakers" in values:
            values["dry_breakers"] = [text for text in values["dry_breakers"] if text != sampling_options.NO_BREAKER]
        if "logit_bias" in values:
            values["logit_bias"] = {str(token): bias for token, bias in sampling_options.parse_biases(args).items()}
        if args.given_names & set(GRAMMAR_OPTIONS):
            values["response_format"] = build_response_format(args)
        try:
            return cls(**values)
        except RequestError as reason:
            raise UsageError(str(reason)) from None


# An option that is not here is refused with --url, not ignored.
FIELD_OF_OPTION = {each.name: each.name for each in fields(RemoteParams)} | {
    "temp": "temperature",
    "dry_breaker": "dry_breakers",
    "stop_token_id": "stop_token_ids",
}


def build_response_format(args: argparse.Namespace) -> dict[str, Any]:
    """Return the `response_format`: OpenAI's for a schema, Sporelm's for other grammars.

    Raises UsageError, RequestError.
    """
    grammar = sampling_options.parse_grammar(args)
    assert grammar is not None
    if grammar.json_schema is None:
        kind = next(name for name in GRAMMAR_OPTIONS if getattr(grammar, name) is not None)
        return {"type": kind, kind: getattr(grammar, kind)}
    import json

    schema = grammar.json_schema
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": json.loads(schema) if isinstance(schema, str) else schema},
    }
