"""A worker: one rank's cut of every weight, its pages and its plan; it runs steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm.backends.backend import Backend, Progress
from sporelm.engine.runner import Model, Runner, Scores
from sporelm.engine.scheduler import Limits
from sporelm.engine.step import Step
from sporelm.errors import UnsupportedModel
from sporelm.tensor.dtype import DType

Share = tuple[int, int, int]  # start, length, total: this rank owns parts start .. start + length of `total` equal ones
WHOLE: Share = (0, 1, 1)


@dataclass(frozen=True)
class LoadedModel:
    """A model and its weights on a device."""

    model: Model
    weights: Mapping[str, Any]


class Worker:
    """Runs the steps of one model on one device."""

    def __init__(
        self,
        model: LoadedModel,
        device: Backend,
        share: Share = WHOLE,
        *,
        limits: Limits,
        kv: DType,
        eager: bool = False,
    ) -> None:
        """Allocate the caches, of numbers of type `kv`, and trace the model. Raises UnsupportedModel for a part."""
        start, length, total = share
        if not 0 <= start < start + length <= total:
            raise UnsupportedModel(f"share {share} must be (start, length, total) with start + length <= total")
        if length != total:
            raise UnsupportedModel(f"share {share} is a part: only whole models, (0, 1, 1), are supported")
        self.device = device
        self.share = share
        heads = [(kept.kv_heads, kept.head_dim) for kept in model.model.memory()]
        caches = device.page_pool(limits.num_pages, heads, kv)
        self.runner = Runner(model.model, model.weights, caches, device, limits, eager=eager)

    def prepare(self, progress: Progress | None = None) -> None:
        """Make all programs now."""
        self.runner.prepare(progress)

    def run(self, step: Step) -> Scores:
        """Compute a step. Changes the caches; the scores are valid until the next step."""
        return self.runner.run(step)
