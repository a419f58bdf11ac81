"""Measured durations of steps: the points on which a cost model is fitted, and those on which it is checked."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal

from sporelm.api.engine_timing import random_ids, run_batch
from sporelm.engine import Engine
from sporelm.errors import RequestError

DECODE_STEPS = 16  # of a sample

Kind = Literal["decode", "prefill"]
Clock = Callable[[], float]


@dataclass(frozen=True)
class StepCase:
    """A decode step of `batch` sequences from `context` positions each on, or a prompt of `tokens`."""

    kind: Kind
    batch: int = 1
    context: int = 0
    tokens: int = 0

    @property
    def label(self) -> str:
        """A short name for tables."""
        if self.kind == "prefill":
            return f"prompt of {self.tokens}"
        return f"{self.batch} x decode at {self.context}"


@dataclass(frozen=True)
class MeasuredStep:
    """The duration of a case for one model, in seconds, with all samples in the order they were taken.

    A decode step is the mean of DECODE_STEPS steps; a prompt is all its steps up to the first token.
    is_best   whether the duration is the shortest sample: other programs on the machine lengthen the others. Else it
              is the median.
    """

    model: str
    case: StepCase
    samples: tuple[float, ...]
    is_best: bool = False

    @property
    def seconds(self) -> float:
        return min(self.samples) if self.is_best else median(self.samples)


def decode_case(batch: int, context: int) -> StepCase:
    """Return a decode step of `batch` sequences at `context` positions."""
    return StepCase("decode", batch, context)


def prompt_case(tokens: int) -> StepCase:
    """Return a prompt."""
    return StepCase("prefill", tokens=tokens)


# Of the model on which a cost model is fitted; all cases of the others are held out too.
FITTED_CASES = (
    *(decode_case(1, 128), decode_case(1, 1024), decode_case(4, 128), decode_case(16, 128), decode_case(4, 384)),
    *(prompt_case(64), prompt_case(256), prompt_case(640)),
)
HELD_OUT_CASES = (
    *(decode_case(1, 768), decode_case(2, 128), decode_case(8, 128)),
    *(prompt_case(16), prompt_case(128), prompt_case(512)),
)


def measure_steps(
    engine: Engine,
    model: str,
    cases: Sequence[StepCase],
    repeat: int,
    clock: Clock = perf_counter,
    announce: Callable[[str], None] = lambda line: None,
) -> list[MeasuredStep]:
    """Take `repeat` samples of each case after one that is not counted. Samples of all cases alternate.

    clock   of a back-end with one thread `thread_time`: other programs then cost little
    """
    if repeat < 1:
        raise RequestError(f"repeat: too few samples (got {repeat}; allowed 1 and more). Give a larger number.")
    samples: dict[StepCase, list[float]] = {case: [] for case in cases}
    for turn in range(repeat + 1):
        for case in cases:
            announce(f"{model}: {case.label}, sample {turn} of {repeat}")
            seconds = sample_step(engine, case, clock)
            if turn:
                samples[case].append(seconds)
    return [MeasuredStep(model, case, tuple(values)) for case, values in samples.items()]


def sample_step(engine: Engine, case: StepCase, clock: Clock = perf_counter) -> float:
    """Return the seconds of a case, measured once."""
    if case.kind == "prefill":
        prompts = [random_ids(engine, case.tokens)]
        start = clock()
        run_batch(engine, prompts, 1, [None])
        return clock() - start
    sequences = [engine.sequence() for _ in range(case.batch)]
    try:
        prompts = [random_ids(engine, case.context) for _ in sequences]
        # The prompts' last step samples a token too, before the clock starts.
        prompts = [request.context_ids for request in run_batch(engine, prompts, 1, sequences)]
        start = clock()
        run_batch(engine, prompts, DECODE_STEPS, sequences)
        return (clock() - start) / DECODE_STEPS
    finally:
        for sequence in sequences:
            engine.drop(sequence)


COLUMNS = ("model", "kind", "batch", "context", "tokens", "seconds", "samples")


def to_cells(step: MeasuredStep) -> list[str]:
    """Return the values of a measured step in the order of COLUMNS."""
    case = step.case
    values = (step.model, case.kind, case.batch, case.context, case.tokens, f"{step.seconds:.6g}")
    return [*map(str, values), " ".join(f"{sample:.6g}" for sample in step.samples)]


def read_steps(path: Path) -> list[MeasuredStep]:
    """Return the measured steps of a CSV file with the columns COLUMNS and any others. Raises RequestError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise RequestError(f"{path}: not readable ({getattr(reason, 'strerror', None) or reason}).") from None
    return parse_steps(csv.DictReader(io.StringIO(text)), path.name)


def parse_steps(rows: Iterable[dict[str, str]], name: str) -> list[MeasuredStep]:
    """Return measured steps from rows of text. Raises RequestError that names the row."""
    steps = []
    for number, row in enumerate(rows, 2):
        try:
            kind: Kind = "prefill" if row["kind"] == "prefill" else "decode"
            case = StepCase(kind, int(row["batch"]), int(row["context"]), int(row["tokens"]))
            samples = tuple(map(float, row["samples"].split()))
            if not samples or min(samples) <= 0:
                raise ValueError
        except (KeyError, ValueError, AttributeError, TypeError):
            wanted = ", ".join(COLUMNS)
            raise RequestError(f"{name}: line {number} is not a measured step (allowed columns: {wanted}).") from None
        steps.append(MeasuredStep(row["model"], case, samples))
    return steps
