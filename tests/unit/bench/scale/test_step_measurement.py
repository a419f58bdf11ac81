"""Cases are measured in turns, written and read again."""

import csv
import io
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.bench.scale.step_measurement import (
    COLUMNS,
    DECODE_STEPS,
    MeasuredStep,
    decode_case,
    measure_steps,
    prompt_case,
    read_steps,
    sample_step,
    to_cells,
)
from sporelm.engine import Engine, EngineConfig, ModelOutput, Step
from sporelm.errors import RequestError


class StandIn:
    """Answers each row with token 1, and notes the steps."""

    kv = "f16"

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []  # sequences and tokens

    def run(self, step: Step, previous: Any = None) -> ModelOutput:
        self.steps.append((len(step.sequences), step.num_tokens))
        logits = np.zeros((max(1, step.num_outputs), 100), np.float32)
        return ModelOutput(np.full(len(logits), 1, np.int32), logits)


def test_a_decode_step_and_a_prompt() -> None:
    worker = StandIn()
    engine = Engine(worker, EngineConfig(256, 256, 100, 64, 4, 40))
    ticks = count()
    assert sample_step(engine, prompt_case(100), lambda: next(ticks)) == 1
    assert worker.steps == [(1, 64), (1, 36)]
    worker.steps.clear()
    assert sample_step(engine, decode_case(4, 16), lambda: next(ticks)) == 1 / DECODE_STEPS
    assert worker.steps == [(4, 64)] + [(4, 4)] * DECODE_STEPS
    assert not engine.kv_cache.sequences


def test_samples_alternate_and_the_first_round_does_not_count() -> None:
    engine = Engine(StandIn(), EngineConfig(256, 256, 100, 64, 4, 40))
    lines: list[str] = []
    cases = [decode_case(4, 16), prompt_case(100)]
    found = measure_steps(engine, "m", cases, 2, announce=lines.append)
    assert lines == [f"m: {case.label}, sample {turn} of 2" for turn in range(3) for case in cases]
    assert [(step.case, len(step.samples)) for step in found] == [(case, 2) for case in cases]
    with pytest.raises(RequestError, match="too few samples"):
        measure_steps(engine, "m", [], 0)


def test_the_shortest_sample_or_the_median() -> None:
    assert MeasuredStep("m", prompt_case(8), (3.0, 1.0, 2.0)).seconds == 2.0
    assert MeasuredStep("m", prompt_case(8), (3.0, 1.0, 2.0), is_best=True).seconds == 1.0


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    steps = [MeasuredStep("m", decode_case(4, 64), (0.25, 0.5)), MeasuredStep("n", prompt_case(100), (1.5,))]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["machine", *COLUMNS], *(["here", *to_cells(step)] for step in steps)])
    path = tmp_path / "steps.csv"
    path.write_text(text.getvalue())
    assert read_steps(path) == steps


@pytest.mark.parametrize("text", ["model,kind\nm,decode\n", f"{','.join(COLUMNS)}\nm,decode,1,0,0,1,-1\n"])
def test_damaged_rows_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"steps.csv: line 2 is not a measured step"):
        read_steps(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not readable"):
        read_steps(tmp_path / "none.csv")
