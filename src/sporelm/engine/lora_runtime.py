"""LoRA adapters on a device, and the plans of steps in which some row has an adapter.

Steps without adapters have plans of their own, in which adapters cost nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.step import Step
from sporelm.errors import BackendError
from sporelm.models.inputs import ADAPTERS, Forward
from sporelm.models.params import adapters_name
from sporelm.ops import Spec
from sporelm.plan import Plan
from sporelm.tensor.dtype import I32


class LoraMatrices(NamedTuple):
    """The matrices that an adapter adds to one product: (x @ a.T) @ b, with the adapter's scale in b."""

    a: Any  # float32 [rank, in]
    b: Any  # float32 [rank, out]


LoraWeights = Mapping[str, LoraMatrices]  # by the name of the weight whose product they add to: "layers.0.attn_q"


class LoraRuntime:
    """Adapters by id, the weights that hold them for the model, and plans, each traced when it is first needed."""

    def __init__(
        self,
        adapters: Mapping[int, LoraWeights],
        weights: Mapping[str, Any],
        trace_plan: Callable[[Forward, Mapping[str, Any], Mapping[str, Spec]], Plan] | None,
    ) -> None:
        """`traced` makes the plan of a forward from weights and from specs that join the step's; None: eager."""
        self.places = {number: place for place, number in enumerate(adapters)}
        names = {name for adapter in adapters.values() for name in adapter}
        self.weights = {**weights, **{adapters_name(name): _table(adapters, name) for name in sorted(names)}}
        self.plans: dict[str, Plan] = {}
        self._trace_plan = trace_plan

    def plan(self, forward: Forward, tokens: Any) -> Plan | None:
        """Return the plan of a model's `forward` (or `embed`) for steps of at most `tokens` tokens; None if eager."""
        name = forward.__name__
        if name not in self.plans and self._trace_plan is not None:
            self.plans[name] = self._trace_plan(forward, self.weights, {ADAPTERS: Spec((tokens,), I32)})
        return self.plans.get(name)

    def adapter_rows(self, step: Step) -> NDArray[np.int32]:
        """Return the place of each row's adapter among the matrices, int32 [tokens]; -1 for none."""
        places = []
        for scheduled in step.sequences:
            if scheduled.adapter_id and scheduled.adapter_id not in self.places:
                raise unknown_adapter_error(scheduled.adapter_id)
            places.append(self.places.get(scheduled.adapter_id, -1))
        return np.repeat(np.array(places, np.int32), [len(scheduled.tokens) for scheduled in step.sequences])

    def close(self) -> None:
        """Free the programs."""
        for plan in self.plans.values():
            plan.close()


def unknown_adapter_error(number: int) -> BackendError:
    """Return the error of a step whose adapter is not loaded."""
    return BackendError(f"a step names adapter {number}, which is not loaded; load it first")


def _table(adapters: Mapping[int, LoraWeights], name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the matrices a and b of each adapter for one product; None where it has none."""
    matrices = [adapter.get(name) for adapter in adapters.values()]
    return tuple(each and each.a for each in matrices), tuple(each and each.b for each in matrices)
