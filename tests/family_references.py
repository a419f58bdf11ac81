"""The reference logits of the tiny models of `families`."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

from close import assert_close
from families import POSITIONS, Case

GOLDENS = Path(__file__).parent / "models" / "goldens" / "families"


def assert_like(logits: np.ndarray, expected: np.ndarray) -> None:
    """Within 1e-4 of the reference's range."""
    span = float(expected.max() - expected.min())
    assert_close(logits / span, expected / span, "logits")


def reference(case: Case) -> np.ndarray:
    """float32 [POSITIONS, vocab]."""
    if case.numpy:
        forward: Callable[..., np.ndarray] = import_module(f"models.paper.{case.numpy}").forward
        return forward(case.config, case.tensors(), case.ids())[list(POSITIONS)]
    golden = GOLDENS / f"{case.name}.npy"
    assert golden.is_file(), (
        f"{case.name} has no golden file: tests/models/make_family_goldens.py {case.name} writes it"
    )
    found: np.ndarray = np.load(golden)
    return found
