"""The option that loads LoRA adapters: --lora [NAME=]PATH[@SCALE]."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.api import LoraAdapter, SamplingParams


LORA_HELP = (
    "a LoRA adapter, a PEFT folder or a .gguf file, as [NAME=]PATH[@SCALE]; may be repeated: the first one is used"
)


def add_lora(parser: argparse.ArgumentParser, help_text: str = LORA_HELP) -> None:
    """Add --lora, which may be repeated."""
    parser.add_argument("--lora", action="append", default=[], metavar="PATH", help=help_text)


def parse_lora(args: argparse.Namespace) -> "list[LoraAdapter]":
    """Return the adapters of --lora. Raises UsageError for an invalid name, path or scale."""
    if not args.lora:
        return []
    from sporelm.api import LoraAdapter

    try:
        adapters = [LoraAdapter.parse(text) for text in args.lora]
        for adapter in adapters:
            adapter.resolved_name, adapter.resolved_path  # noqa: B018 - they raise for invalid values
    except RequestError as reason:
        raise UsageError(f"--lora: {reason}") from None
    return adapters


def with_first_adapter(params: "SamplingParams", adapters: "list[LoraAdapter]") -> "SamplingParams":
    """Return the parameters with the first of the adapters, if any."""
    return replace(params, adapter=first_name(adapters)) if adapters else params


def first_name(adapters: "list[LoraAdapter]") -> str | None:
    """Return the name of the first adapter, which is used; None without adapters."""
    return adapters[0].resolved_name if adapters else None
