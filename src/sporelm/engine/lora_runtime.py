"""LoRA adapters on a device, and the plans of steps in which some row has an adapter.

Steps without adapters have plans of their own, in which adapters cost nothing. The matrices of adapters are constants
of the plans: one tensor for each matrix, so that other adapters need new plans; or, on back-ends that are
`SlotWriter`s, the slots of an `AdapterTable`, which loading an adapter fills.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, SlotWriter
from sporelm.engine.step import Step
from sporelm.errors import BackendError
from sporelm.models.inputs import ADAPTERS, Forward
from sporelm.models.params import adapters_name
from sporelm.ops import Spec
from sporelm.plan import Plan
from sporelm.tensor.dtype import I32

MIN_SLOTS, MIN_RANK = 4, 8  # of a table; it grows by doubling


class LoraMatrices(NamedTuple):
    """The matrices that an adapter adds to one product: (x @ a.T) @ b, with the adapter's scale in b.

    Arrays where adapters have slots of a table, else tensors of the back-end.
    """

    a: Any  # float32 [rank, in]
    b: Any  # float32 [rank, out]


LoraWeights = Mapping[str, LoraMatrices]  # by the name of the weight whose product they add to: "layers.0.attn_q"
TracePlan = Callable[[Forward, Mapping[str, Any], Mapping[str, Spec]], Plan]


class AdapterTable:
    """The matrices of all adapters of a model, stacked by slot: a [slots, rank, in] and b [slots, rank, out] for each
    product. Rows beyond an adapter's rank are zero."""

    def __init__(self, backend: Backend, num_slots: int, rank: int, widths: Mapping[str, tuple[int, int]]) -> None:
        """`widths`: the columns of a and b of each product, by the name of its weight."""
        assert isinstance(backend, SlotWriter)
        self._writer: SlotWriter = backend
        self.num_slots, self.rank, self.widths = num_slots, rank, dict(widths)
        self.matrices = {
            name: LoraMatrices(*(backend.tensor(np.zeros((num_slots, rank, width), np.float32)) for width in both))
            for name, both in widths.items()
        }
        self.plans: dict[str, Plan] = {}  # by the name of the forward function

    def write(self, slot: int, adapter: LoraWeights) -> None:
        """Fill a slot, which no step in flight uses."""
        for name, table in self.matrices.items():
            matrices = adapter.get(name, (None, None))
            for stacked, matrix in zip(table, matrices, strict=True):
                self._writer.write_slot(stacked, slot, matrix)

    def close(self) -> None:
        """Free the programs."""
        for plan in self.plans.values():
            plan.close()


class LoraRuntime:
    """Adapters by id, the weights that hold them for the model, and plans, each traced when it is first needed."""

    def __init__(
        self,
        adapters: Mapping[int, LoraWeights],
        weights: Mapping[str, Any],
        trace_plan: TracePlan | None,
        table: AdapterTable | None = None,
        slots: Mapping[int, int] | None = None,
    ) -> None:
        """`trace_plan` makes the plan of a forward from weights and from specs that join the step's; None: eager.

        table   has the adapters, in `slots` by id, and the plans
        """
        self.table = table
        self._trace_plan = trace_plan
        self.plans: dict[str, Plan] = {} if table is None else table.plans
        tables: Mapping[str, Any]
        if table is None or slots is None:
            self.places = {number: place for place, number in enumerate(adapters)}
            tables = {name: _collect(adapters, name) for name in {name for each in adapters.values() for name in each}}
        else:
            self.places = dict(slots)
            tables = table.matrices
        self.weights = {**weights, **{adapters_name(name): tables[name] for name in sorted(tables)}}

    def plan(self, forward: Forward, tokens: Any, extra_specs: Mapping[str, Spec] | None = None) -> Plan | None:
        """Return the plan of a model's `forward` (or `embed`) for steps of at most `tokens` tokens; None if eager.

        extra_specs   of the inputs that steps with images have besides
        """
        name = f"{forward.__name__} with images" if extra_specs else forward.__name__
        if name not in self.plans and self._trace_plan is not None:
            specs = {ADAPTERS: Spec((tokens,), I32), **(extra_specs or {})}
            self.plans[name] = self._trace_plan(forward, self.weights, specs)
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


def fill_table(
    table: AdapterTable | None, used: Mapping[int, int], adapters: Mapping[int, LoraWeights], backend: Backend
) -> tuple[AdapterTable, dict[int, int]]:
    """Return a table that has these adapters, and the slot of each: `table` if they fit, else a larger one.

    used   slots by id of the adapters that steps may use meanwhile: they stay as they are
    """
    new = adapters.keys() - used.keys()
    matrices = [(name, each) for adapter in adapters.values() for name, each in adapter.items()]
    rank = max((each.a.shape[0] for _, each in matrices), default=1)
    widths = {name: (each.a.shape[1], each.b.shape[1]) for name, each in matrices}
    if table is not None:
        free = [slot for slot in range(table.num_slots) if slot not in used.values()]
        if len(new) <= len(free) and rank <= table.rank and widths.keys() <= table.widths.keys():
            slots = {number: used[number] for number in adapters if number in used}
            slots |= dict(zip(sorted(new), free, strict=False))
            _write_all(table, new, slots, adapters)
            return table, slots
    num_slots = _double_to(len(adapters), table.num_slots if table else MIN_SLOTS)
    rank = _double_to(rank, table.rank if table else MIN_RANK)
    table = AdapterTable(backend, num_slots, rank, {**(table.widths if table else {}), **widths})
    slots = {number: slot for slot, number in enumerate(adapters)}
    _write_all(table, adapters, slots, adapters)
    return table, slots


def _write_all(
    table: AdapterTable, numbers: Collection[int], slots: Mapping[int, int], adapters: Mapping[int, LoraWeights]
) -> None:
    for number in numbers:
        table.write(slots[number], adapters[number])


def _double_to(needed: int, size: int) -> int:
    """Return the first size of at least `needed`, doubling from `size`."""
    while size < needed:
        size *= 2
    return size


def unknown_adapter_error(number: int) -> BackendError:
    """Return the error of a step whose adapter is not loaded."""
    return BackendError(f"a step names adapter {number}, which is not loaded; load it first")


def _collect(adapters: Mapping[int, LoraWeights], name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the matrices a and b of each adapter for one product; None where it has none."""
    matrices = [adapter.get(name) for adapter in adapters.values()]
    return tuple(each and each.a for each in matrices), tuple(each and each.b for each in matrices)
