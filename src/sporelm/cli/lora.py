"""The option that loads adapters: --lora [NAME=]PATH[@SCALE]."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.errors import RequestError, UsageError

if TYPE_CHECKING:
    from sporelm.api import LoraAdapter, SamplingParams


def add_lora(parser: argparse.ArgumentParser) -> None:
    """--lora, which may be repeated."""
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="PATH",
        help="an adapter (LoRA), a PEFT folder or a .gguf file, as [NAME=]PATH[@SCALE]; may be repeated: answers have "
        "the first",
    )


def adapters(args: argparse.Namespace) -> "list[LoraAdapter]":
    """The adapters that were named. Raises UsageError for a name or a scale that cannot be."""
    try:
        found = [parsed(text) for text in args.lora]
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


def parsed(text: str) -> "LoraAdapter":
    """An adapter from [NAME=]PATH[@SCALE]. What is there under the whole text, or under all but the name, is a path."""
    from sporelm.api import LoraAdapter

    name: str | None = None
    if not exists(text) and "=" in text:
        name, _, text = text.partition("=")
    path, at, scale = text.rpartition("@")
    if exists(text) or not at:
        return LoraAdapter(text, name)
    try:
        return LoraAdapter(path, name, float(scale))
    except ValueError:
        raise UsageError(f"{scale!r:.60} after the @ of {text!r:.200} is no number") from None


def exists(text: str) -> bool:
    """Whether a file or a folder is called so."""
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: there is no such home folder
        return False
