"""Folders of every family in BF16: they mean their rounded numbers, and stay near what the whole numbers give."""

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from families import CASES, Case, write_case
from hf_folders import stored, write_safetensors
from sporelm.quant import BF16, F32
from stepping import Stepper

FIRST = [next(cases) for _, cases in groupby(sorted(CASES, key=lambda case: case.family), key=lambda case: case.family)]


def rounded(values: np.ndarray) -> np.ndarray:
    """Return float32 values that BF16 holds exactly."""
    halves = np.frombuffer(stored(values, BF16), np.uint16).astype(np.uint32) << np.uint32(16)
    return halves.view(np.float32).reshape(values.shape)


def written(folder: Path, case: Case, kind: str) -> Path:
    """The folder with its rounded numbers as a type of safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.config))
    form = {"F32": F32, "BF16": BF16}[kind]
    tensors = {name: rounded(values) for name, values in case.tensors().items()}
    held = {name: (kind, values.shape, stored(values, form)) for name, values in tensors.items()}
    write_safetensors(folder / "model.safetensors", held)
    return folder


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_bf16_means_its_numbers(case: Case, cpu: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    places = [written(tmp_path / kind, case, kind) for kind in ("F32", "BF16")]
    places.append(write_case(tmp_path / "whole", case))
    runners = [load(place, cpu, context=64, eager=True) for place in places]
    wanted, found, whole = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    span = float(np.ptp(whole))
    assert_close(found / span, wanted / span, "logits")
    if case.model.config.experts is None:  # a rounded router may choose others
        assert_close(found / span, whole / span, "bf16")
    for runner in runners:
        runner.close()
