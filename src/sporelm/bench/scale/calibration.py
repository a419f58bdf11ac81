"""The fit of a cost model's efficiency on measured steps, and of a link's latency and bandwidth on timed messages.

Steps are fitted by least squares of the logarithms of durations (Levenberg 1944, Marquardt 1963), so that an error of
10 % counts the same for a short step as for a long one. The unknowns are logarithms too: shares and seconds stay
positive. Each is held near its start by a weak prior, since measured steps may say nothing about some of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.bench.scale.cost_model import CostModel, Efficiency, StepLoad
from sporelm.bench.scale.hardware import Link
from sporelm.bench.scale.step_measurement import DECODE_STEPS, MeasuredStep, StepCase
from sporelm.errors import RequestError

PRIOR_WEIGHT = 0.03  # of the logarithm of an unknown over its start: a factor of e costs as much as an error of 3 %
MAX_ROUNDS = 200

Models = Mapping[str, CostModel]


@dataclass(frozen=True)
class Prediction:
    """A measured step beside the seconds that a cost model gives it."""

    measured: MeasuredStep
    seconds: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """The predicted seconds over the measured ones, less 1."""
        return self.seconds / self.measured.seconds - 1


@dataclass(frozen=True)
class CalibrationResult:
    """A fitted efficiency, and the predictions of all measured steps with it."""

    efficiency: Efficiency
    predictions: list[Prediction]

    def errors(self, *, is_fitted: bool | None = None, model: str | None = None) -> list[float]:
        """Return the errors of all steps; of the fitted or the held-out ones, or of one model, if that is given."""
        return [
            each.error
            for each in self.predictions
            if is_fitted in (None, each.is_fitted) and model in (None, each.measured.model)
        ]


def summarize_errors(errors: Sequence[float]) -> dict[str, float]:
    """Return the median and the largest absolute error, and the share of errors within 20 %."""
    if not errors:
        return {"count": 0}
    sizes = [abs(error) for error in errors]
    within = sum(size <= 0.2 for size in sizes) / len(sizes)
    return {"count": len(sizes), "median": median(sizes), "largest": max(sizes), "within_20_percent": within}


def predict_seconds(model: CostModel, case: StepCase, token_budget: int) -> float:
    """Return the seconds that a cost model gives a case, as `step_measurement.sample_step` measures it."""
    if case.kind == "prefill":
        return model.prompt(case.tokens, token_budget).seconds
    return model.step(StepLoad.decode(case.batch, case.context + (DECODE_STEPS - 1) / 2)).seconds


def fit_efficiency(
    models: Models,
    steps: Sequence[MeasuredStep],
    is_fitted: Callable[[MeasuredStep], bool],
    token_budget: int,
    start: Efficiency | None = None,
) -> CalibrationResult:
    """Fit on the steps that `is_fitted` selects, and predict all of them. `models` by the name in the steps.

    Raises RequestError if no step is selected, or for a model that is missing.
    """
    start = start or Efficiency()
    names = [each.name for each in fields(Efficiency)]
    origin = np.log([getattr(start, name) for name in names])
    selected = [step for step in steps if is_fitted(step)]
    if not selected:
        raise RequestError("calibration: no step to fit on (got 0; allowed 1 and more). Measure some.")
    if missing := sorted({step.model for step in steps} - models.keys()):
        raise RequestError(f"calibration: no cost model for {', '.join(missing)}.")
    measured = np.log([step.seconds for step in selected])

    def efficiency(unknowns: NDArray[Any]) -> Efficiency:
        values = dict(zip(names, np.exp(unknowns).tolist(), strict=True))
        return Efficiency(**values | {"serial": min(1.0, values["serial"])})

    def residuals(unknowns: NDArray[Any]) -> NDArray[Any]:
        shares = efficiency(unknowns)
        times = [
            predict_seconds(models[step.model].with_efficiency(shares), step.case, token_budget) for step in selected
        ]
        return np.concatenate([np.log(times) - measured, PRIOR_WEIGHT * (unknowns - origin)])

    shares = efficiency(minimize_squares(residuals, origin))
    predictions = [
        Prediction(
            step,
            predict_seconds(models[step.model].with_efficiency(shares), step.case, token_budget),
            is_fitted(step),
        )
        for step in steps
    ]
    return CalibrationResult(shares, predictions)


def minimize_squares(residuals: Callable[[NDArray[Any]], NDArray[Any]], start: NDArray[Any]) -> NDArray[Any]:
    """Return the unknowns with the smallest sum of squared residuals near `start` (Levenberg-Marquardt)."""
    unknowns, damping = np.array(start, np.float64), 1e-2
    current = residuals(unknowns)
    for _ in range(MAX_ROUNDS):
        shift = 1e-5
        slopes = np.stack(
            [(residuals(unknowns + shift * unit) - current) / shift for unit in np.eye(len(unknowns))], axis=1
        )
        normal, gradient = slopes.T @ slopes, slopes.T @ current
        move = -np.linalg.solve(normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(normal))), gradient)
        tried = residuals(unknowns + move)
        if tried @ tried < current @ current:
            is_settled = current @ current - tried @ tried < 1e-10 * (current @ current)
            unknowns, current, damping = unknowns + move, tried, max(damping / 4, 1e-9)
            if is_settled:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return unknowns


def fit_link(name: str, messages: Sequence[tuple[float, float]]) -> Link:
    """Return the link of timed messages (bytes, seconds): latency and bandwidth by least squares of relative errors.

    Raises RequestError for fewer than two sizes.
    """
    sizes = np.array([nbytes for nbytes, _ in messages], np.float64)
    seconds = np.array([elapsed for _, elapsed in messages], np.float64)
    if len(set(sizes.tolist())) < 2 or seconds.min() <= 0:
        raise RequestError(f"{name}: too few messages (got {len(messages)}; allowed two sizes and more, timed).")
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    latency, byte_seconds = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
    if byte_seconds <= 0:
        raise RequestError(f"{name}: larger messages were not slower. Measure larger ones.")
    return Link(name, max(0.0, float(latency)), 1 / float(byte_seconds), source="measured")
