"""The option that loads adapters: --lora [NAME=]PATH[@SCALE]."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.api import LoraAdapter, SamplingParams


LORA_HELP = (
    "a LoRA adapter, a PEFT folder or a .gguf file, as [NAME=]PATH[@SCALE]; may be repeated: answers use the first one"
)


def add_lora(parser: argparse.ArgumentParser, what: str = LORA_HELP) -> None:
    """--lora, which may be repeated."""
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="PATH",
        help=what,
    )


def adapters(args: argparse.Namespace) -> "list[LoraAdapter]":
    """The adapters that were named. Raises UsageError for a name or a scale that cannot be."""
    if not args.lora:
        return []
    from sporelm.api import LoraAdapter

    try:
        found = [LoraAdapter.parse(text) for text in args.lora]
        for each in found:
            each.title, each.place  # noqa: B018 - they check
    except RequestError as reason:
        raise UsageError(f"--lora: {reason}") from None
    return found


def chosen(params: "SamplingParams", loaded: "list[LoraAdapter]") -> "SamplingParams":
    """The parameters with the first of the adapters, if there are any."""
    return replace(params, adapter=first(loaded)) if loaded else params


def first(loaded: "list[LoraAdapter]") -> str | None:
    """The name of the first of the adapters, which is used; None if there are none."""
    return loaded[0].title if loaded else None
