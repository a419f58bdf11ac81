"""Writes what transformers computes for the models of `families` into goldens/families. Needs torch, transformers:

PYTHONPATH=src python tests/models/make_family_goldens.py [NAME ...]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
GOLDENS = HERE / "goldens" / "families"
sys.path.insert(0, str(HERE.parent))

from families import CASES, POSITIONS, Case, write_case  # noqa: E402


def transformers_logits(case: Case, folder: Path) -> np.ndarray:
    """float32 [tokens, vocab] of transformers' own model, read from the folder as anybody reads one."""
    import torch
    from transformers import AutoModelForCausalLM

    write_case(folder, case)
    plain: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    if case.model.config.experts:
        plain["experts_implementation"] = "eager"  # the usual one wants widths of whole blocks
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **plain)
    strange = {kind: found for kind, found in info.items() if found}
    assert not strange, f"{case.name}: transformers says of the folder's tensors: {strange}"
    with torch.no_grad():
        found: np.ndarray = model.eval()(torch.tensor([case.ids()])).logits[0].float().numpy()
    return found


def main(names: list[str]) -> None:
    GOLDENS.mkdir(exist_ok=True)
    for case in CASES:
        if case.numpy or (names and case.name not in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            logits = transformers_logits(case, Path(folder))
        path = GOLDENS / f"{case.name}.npy"
        np.save(path, logits[list(POSITIONS)])
        print(f"{case.name}: {path.stat().st_size} bytes, from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
