"""A model run step by step without an engine: the plainest loop there is, eager or planned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sporelm.models import Decoder, StepInputs, input_specs, trace_model
from sporelm.models.blocks import State
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, ElementType


class Stepper:
    """Some sequences over one set of caches; each sequence has its own pages, taken in a scattered order."""

    def __init__(
        self,
        model: Decoder,
        weights: Mapping[str, Any],
        backend: Any,
        *,
        context: int,
        sequences: int = 1,
        eager: bool,
        kv: ElementType = F32,
    ) -> None:
        self.model, self.backend, self.eager = model, backend, eager
        self.weights = dict(weights) | {name: backend.tensor(table) for name, table in model.tables(context).items()}
        self.max_pages = -(-context // PAGE)
        count = self.max_pages * sequences
        memory = model.memory()
        shapes = [each.shapes for each in memory if isinstance(each, State)]
        self.states = backend.allocate_states(sequences, shapes) if shapes else []  # a sequence's number is its state's
        left = iter(self.states)
        self.caches = [
            next(left) if isinstance(each, State) else backend.allocate_pages(count, [each.position_shape], kv)[0]
            for each in memory
        ]
        scattered = np.random.RandomState(5).permutation(count).astype(np.int32)
        self.pages = scattered.reshape(sequences, self.max_pages)
        self.lengths = [0] * sequences
        self.plan: Plan | None = None
        if not eager:
            most = max(backend.step_buckets.values())
            specs = input_specs(tokens=most, sequences=sequences, rows=most, max_pages=self.max_pages)
            self.plan = Plan(trace_model(model.forward, self.weights, self.caches, specs), backend)

    def step(
        self, parts: Sequence[tuple[int, Sequence[int]]], rows: Sequence[int] | None = None
    ) -> dict[str, np.ndarray]:
        """Run the new ids of some sequences, (sequence, ids) each; outputs of `rows` (default: all), copied."""
        tokens, positions, slots, starts, lengths = [], [], [], [0], []
        for sequence, ids in parts:
            for token in ids:
                position = self.lengths[sequence]
                tokens.append(token)
                positions.append(position)
                slots.append(int(self.pages[sequence, position // PAGE]) * PAGE + position % PAGE)
                self.lengths[sequence] += 1
            starts.append(len(tokens))
            lengths.append(self.lengths[sequence])
        wanted = range(len(tokens)) if rows is None else rows
        pages = self.pages[[sequence for sequence, _ in parts]]
        lists = (tokens, positions, slots, starts, lengths, pages, list(wanted), [sequence for sequence, _ in parts])
        inputs = StepInputs(*(np.ascontiguousarray(values, np.int32) for values in lists))
        if self.plan is None:
            tensors = (None if array is None else self.backend.tensor(array) for array in inputs)
            results = self.model.forward(StepInputs(*tensors), self.weights, self.caches)
            return {name: np.array(tensor.numpy()) for name, tensor in results.items()}
        extents = {"tokens": len(tokens), "sequences": len(parts), "starts": len(starts), "rows": len(inputs.rows)}
        given = {name: array for name, array in inputs._asdict().items() if array is not None}
        return {name: np.array(array) for name, array in self.plan.run(given, extents).items()}

    def go_on(self, source: int, target: int) -> None:
        """Let a sequence go on from the whole first pages of another, whose states it gets."""
        whole = self.lengths[source] // PAGE
        self.pages[target, :whole], self.lengths[target] = self.pages[source, :whole], self.lengths[source]
        if self.states:
            self.backend.copy_states(self.states, [(source, target)])

    def close(self) -> None:
        """Free the programs and the caches."""
        if self.plan is not None:
            self.plan.close()
        self.backend.free_pages([cache for cache in self.caches if not isinstance(cache, tuple)])
        if self.states:
            self.backend.free_states(self.states)

    def logits(self, ids: Sequence[int], chunk: int | None = None) -> np.ndarray:
        """Logits float32 [len(ids), vocab] of sequence 0, in steps of `chunk` ids (default: the largest allowed)."""
        size = chunk or max(self.backend.step_buckets.values())
        steps = [self.step([(0, ids[start : start + size])])["logits"] for start in range(0, len(ids), size)]
        return np.concatenate(steps)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The next `count` ids of sequence 0, each the most likely one."""
        found, new = [], list(ids)
        while len(found) < count:
            new = [int(self.step([(0, new)], rows=[len(new) - 1])["tokens"][0])]
            found += new
        return found
