"""Register tiles and other numbers of the kernels that measuring decides: read from tiles.json, by target."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tiles:
    """Vectors of rows (panels) by tokens that a kernel holds in registers."""

    few_tokens: int  # tokens that share one pass over a panel, in the few-token kernel
    many_panels: int  # panels by tokens of the many-token kernel: formats of blocks of 32,
    many_tokens: int
    super_panels: int  # of super-blocks of 256,
    super_tokens: int
    float_panels: int  # and formats multiplied in f32
    float_tokens: int
    attention_rows: int  # query rows of the attention kernel for many tokens


@cache
def _measured() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("tiles.json").read_text("utf-8"))
    return found


def tiles_of(target: str) -> Tiles:
    """The measured tiles of a target."""
    return Tiles(**_measured()[target])
