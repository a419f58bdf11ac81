"""A prompt whose latent rows lie in pages."""

from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.conformance.mla import Latents, filled
from sporelm.evals.conformance.paged_attention import page_tables

LENGTH = 600


class Prompt:
    """A sequence whose pages are full; any of its rows can be asked for."""

    def __init__(self, cpu: Any, shape: Latents) -> None:
        self.on, self.shape = On(cpu, f"{shape}"), shape
        self.cache, self.table = filled(self.on, shape), page_tables(self.on, (LENGTH,))
        self.queries = [self.on.values(LENGTH, shape.heads * each) for each in (shape.rank, shape.head_dim)]

    def rows(self, *parts: tuple[int, int]) -> list[np.ndarray]:
        """Results of rows first .. last, each part of a sequence of its own over the same pages, in one step."""
        starts = np.cumsum([0, *(last - first for first, last in parts)])
        numbers = (starts, [last for _, last in parts], np.repeat(self.table, len(parts), axis=0))
        given = [self.on.tensor(np.concatenate([each[first:last] for first, last in parts])) for each in self.queries]
        tensors = [self.on.ints(values) for values in numbers]
        found = ops.latent_attention(*given, self.cache, *tensors, heads=self.shape.heads, scale=0.2).numpy()
        return np.split(found, starts[1:-1])
