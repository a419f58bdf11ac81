"""Fits recover what measured steps were made from."""

from dataclasses import fields, replace

import pytest

from sporelm.bench.scale.calibration import fit_efficiency, fit_link, predict_seconds, summarize_errors
from sporelm.bench.scale.cost_model import CostModel, Efficiency
from sporelm.bench.scale.hardware import Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.step_measurement import FITTED_CASES, HELD_OUT_CASES, MeasuredStep
from sporelm.errors import RequestError

LINK = Link("test", 1e-5, 1e9)
MACHINE = Machine("test", Processor("test", 16e9, 60e9, {"f32": 2.3e11, "f16": 2.3e11, "int8": 9e11}), 1, LINK, LINK)
TRUE = Efficiency(0.8, 0.9, 0.5, 0.7, 0.2, 0.5, 5e-6, 2e-4, 1e-5)
NAMES = ("smollm2-360m:q4_0", "llama-1b:q4_0")
MODELS = {name: CostModel(ModelSize.from_shape(*name.split(":")), MACHINE) for name in NAMES}


def steps(efficiency: Efficiency = TRUE) -> list[MeasuredStep]:
    return [
        MeasuredStep(name, case, (predict_seconds(model.with_efficiency(efficiency), case, 512),))
        for name, model in MODELS.items()
        for case in (*FITTED_CASES, *HELD_OUT_CASES)
    ]


def selects(step: MeasuredStep) -> bool:
    return step.model == NAMES[0] and step.case in FITTED_CASES


def test_held_out_steps_of_another_model_are_predicted() -> None:
    result = fit_efficiency(MODELS, steps(), selects, 512)
    assert summarize_errors(result.errors(is_fitted=True))["largest"] < 0.03
    held_out = summarize_errors(result.errors(is_fitted=False, model=NAMES[1]))
    assert held_out["largest"] < 0.25
    assert held_out["count"] == len(FITTED_CASES) + len(HELD_OUT_CASES)


def test_a_fit_that_begins_at_the_truth_stays_there() -> None:
    result = fit_efficiency(MODELS, steps(), selects, 512, TRUE)
    for each in fields(Efficiency):
        assert getattr(result.efficiency, each.name) == pytest.approx(getattr(TRUE, each.name), rel=1e-3)


def test_a_slower_machine_has_smaller_shares() -> None:
    slow = [replace(step, samples=tuple(2 * sample for sample in step.samples)) for step in steps()]
    result = fit_efficiency(MODELS, slow, selects, 512)
    assert result.efficiency.compute < 0.6
    assert summarize_errors(result.errors(is_fitted=True))["largest"] < 0.1


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(RequestError, match="no step to fit on"):
        fit_efficiency(MODELS, steps(), lambda step: False, 512)
    with pytest.raises(RequestError, match=f"no cost model for {NAMES[1]}"):
        fit_efficiency({NAMES[0]: MODELS[NAMES[0]]}, steps(), selects, 512)


def test_the_summary_of_errors() -> None:
    assert summarize_errors([0.1, -0.3]) == {"count": 2, "median": 0.2, "largest": 0.3, "within_20_percent": 0.5}
    assert summarize_errors([]) == {"count": 0}


def test_a_link_is_fitted_on_messages() -> None:
    link = fit_link("wire", [(size, 2e-5 + size / 5e8) for size in (64, 1024, 65536, 1 << 20)])
    assert link.latency_seconds == pytest.approx(2e-5)
    assert link.bytes_per_second == pytest.approx(5e8)
    with pytest.raises(RequestError, match="too few messages"):
        fit_link("wire", [(64, 1e-5), (64, 1.1e-5)])
    with pytest.raises(RequestError, match="too few messages"):
        fit_link("wire", [])
    with pytest.raises(RequestError, match="not slower"):
        fit_link("wire", [(64, 1e-3), (1 << 20, 1e-6)])
