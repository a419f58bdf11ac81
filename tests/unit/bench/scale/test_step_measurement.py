"""Cases are measured in turns, written and read again."""

import csv
import io
from pathlib import Path

import pytest

from sporelm.bench.scale.step_measurement import (
    COLUMNS,
    DECODE_STEPS,
    MeasuredStep,
    decode_case,
    measure_steps,
    prompt_case,
    read_steps,
    to_cells,
)
from sporelm.errors import RequestError


class CountingEngine:
    """Each sample takes a second longer than the one before."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def bench_prefill(self, n: int) -> float:
        self.calls.append(("prefill", n))
        return float(len(self.calls))

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
        self.calls.append(("decode", n, batch, depth))
        return float(len(self.calls)) * n


def test_samples_alternate_and_the_first_round_does_not_count() -> None:
    engine = CountingEngine()
    found = measure_steps(engine, "m", [decode_case(4, 64), prompt_case(100)], 2)
    assert engine.calls == [("decode", DECODE_STEPS, 4, 64), ("prefill", 100)] * 3
    assert [step.samples for step in found] == [(3.0, 5.0), (4.0, 6.0)]
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
