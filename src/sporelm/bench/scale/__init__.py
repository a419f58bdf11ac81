"""A simulation of one model over many sockets, GPUs and machines, fitted on measured steps."""

from sporelm.bench.scale.calibration import fit_efficiency, fit_link
from sporelm.bench.scale.cost_model import CostModel, Efficiency, ParallelLayout, StepLoad
from sporelm.bench.scale.hardware import Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.simulation import Simulation, make_limits

__all__ = [
    "CostModel",
    "Efficiency",
    "Link",
    "Machine",
    "ModelSize",
    "ParallelLayout",
    "Processor",
    "Simulation",
    "StepLoad",
    "fit_efficiency",
    "fit_link",
    "make_limits",
]
