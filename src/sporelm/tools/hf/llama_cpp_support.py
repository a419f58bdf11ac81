"""Notes on what llama.cpp does with a GGUF file: which tensors it does not take, and which numbers it does not read.

The table is read from llama.cpp's sources by tests/data/make_llama_cpp_tensors.py.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

YARN_BOUNDS = (32.0, 1.0)  # beta_fast and beta_slow where llama.cpp reads none
_LAYER = re.compile(r"\b(?:blk|enc|dec)\.\d+\.|(?<=\.)\d+(?=\.)")
_SCALES = (".scale", ".input_scale")  # of quantized weights, read for every architecture


def llama_cpp_notes(
    architecture: str, tensors: Iterable[str], yarn_bounds: tuple[float, float] | None = None
) -> list[str]:
    """Return a line for each way in which llama.cpp refuses a file or computes something else with it.

    architecture    as `general.architecture` names it
    tensors         the names of the file's tensors
    yarn_bounds     beta_fast and beta_slow of a file with YaRN

    Nothing is returned for an architecture that this llama.cpp does not have.
    """
    table = _table()
    entry = table["architectures"].get(architecture)
    if entry is None:
        return []
    reader = f"llama.cpp ({table['llama.cpp']})"
    notes = []
    known = set(entry["tensors"])
    found = {_LAYER.sub(lambda match: re.sub(r"\d+", "{}", match[0]), name) for name in tensors}
    if unknown := sorted(name for name in found - known if not name.endswith(_SCALES)):
        names = ", ".join(name.replace("{}", "N") for name in unknown)
        notes.append(f"{reader} refuses this file: files of {architecture!r} have no {names} there")
    if yarn_bounds is not None and yarn_bounds != YARN_BOUNDS and not entry["yarn_bounds"]:
        fast, slow = yarn_bounds
        notes.append(
            f"{reader} does not read YaRN's beta_fast and beta_slow for {architecture!r} and computes with 32 and 1: "
            f"run it with --yarn-beta-fast {fast:g} --yarn-beta-slow {slow:g}"
        )
    return notes


@cache
def _table() -> dict[str, Any]:
    text = files("sporelm.tools.hf").joinpath("llama_cpp_tensors.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
