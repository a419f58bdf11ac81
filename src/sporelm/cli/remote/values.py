"""How an answer of another server is to be made: what the user gave, and nothing else."""

import argparse
import math
from dataclasses import dataclass, fields
from typing import Any

from sporelm.cli import sampling
from sporelm.errors import RequestError, UsageError

# Options of a chat that say nothing of sampling and make sense with --url.
OTHERS = {"url", "api_key", "model", "system", "debug"}
FORMS = ("json_schema", "regex", "lark", "gbnf", "choice")


@dataclass(frozen=True)
class RemoteParams:
    """Fields of a request, under the names of OpenAI's API and, for what it lacks, of Sporelm's server.

    None: the server decides, and the field is not sent. The first line's are OpenAI's own. Raises RequestError for a
    number that is none; all else the server judges.
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
    # Not OpenAI's.
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
        for name, value in self.given().items():
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(f"{name} is {value}: it must be a finite number")

    def given(self) -> dict[str, Any]:
        """The fields that are sent."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @classmethod
    def of(cls, args: argparse.Namespace) -> "RemoteParams":
        """What the options say; `args.given` names those that were given. Raises UsageError for those of an engine."""
        taken: dict[str, Any] = {}
        for name in sorted(args.given - OTHERS - set(FORMS)):
            field = OPTIONS.get(name)
            if field is None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for a model that runs here, and with --url it runs on the server: "
                    "leave one of them out"
                )
            taken[field] = getattr(args, name)
        if "dry_breakers" in taken:
            taken["dry_breakers"] = [text for text in taken["dry_breakers"] if text != sampling.NO_BREAKER]
        if "logit_bias" in taken:
            taken["logit_bias"] = {str(token): bias for token, bias in sampling.biases(args).items()}
        if args.given & set(FORMS):
            taken["response_format"] = response_format(args)
        try:
            return cls(**taken)
        except RequestError as reason:
            raise UsageError(str(reason)) from None


# Names of options -> fields. An option of sampling that is not here is refused with --url, never left out.
OPTIONS = {each.name: each.name for each in fields(RemoteParams)} | {
    "temp": "temperature",
    "dry_breaker": "dry_breakers",
    "stop_token_id": "stop_token_ids",
}


def response_format(args: argparse.Namespace) -> dict[str, Any]:
    """The form of the answer: OpenAI's for a schema, Sporelm's for the others. Raises UsageError, RequestError."""
    grammar = sampling.grammar(args)
    assert grammar is not None
    if grammar.json_schema is None:
        kind = next(name for name in FORMS if getattr(grammar, name) is not None)
        return {"type": kind, kind: getattr(grammar, kind)}
    import json

    schema = grammar.json_schema
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": json.loads(schema) if isinstance(schema, str) else schema},
    }
